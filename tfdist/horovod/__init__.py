"""Horovod's interface to Keras, on Keras 3: `import tfdist.horovod as hvd`.

It stands in for `horovod.tensorflow.keras` and `horovod.keras`, in Horovod's own way of
working: one process for each device, each with its own part of the data, and a wrapped
optimizer. `tfdist.strategies.HorovodStrategy` is the other way to use Horovod, in which
`fit` is given the global batch and the results are those of one process.
"""

from tfdist.horovod.basics import (
    Adasum,
    Average,
    Compression,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)

# Above all others, because it says what to do where Horovod is missing.
# isort: split
from tfdist.horovod import callbacks, elastic
from tfdist.horovod.batch_normalization import SyncBatchNormalization
from tfdist.horovod.broadcasting import (
    broadcast_global_variables,
    broadcast_variables,
)
from tfdist.horovod.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from tfdist.horovod.saving import load_model
from tfdist.horovod.tape import DistributedGradientTape, PartialDistributedGradientTape
from tfdist.horovod.values import (
    allgather,
    allgather_object,
    allreduce,
    alltoall,
    broadcast,
    broadcast_object,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    reducescatter,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
