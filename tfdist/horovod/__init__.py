"""Horovod's interface to Keras, on Keras 3: `import tfdist.horovod as hvd`.

It replaces `horovod.tensorflow.keras` and `horovod.keras`, and works as Horovod does:
one process for each device, each with its own part of the data, and a wrapped
optimizer. `tfdist.strategies.HorovodStrategy` is the other way to use Horovod, in which
`fit` is given the global batch and the results are those of one process.
"""

# Before all others, because it tells how to install a missing Horovod.
from tfdist.horovod.native import init, native

# isort: split
from tfdist.horovod import callbacks, elastic
from tfdist.horovod.batch_normalization import SyncBatchNormalization
from tfdist.horovod.optimizer import (
    DistributedOptimizer,
    PartialDistributedOptimizer,
    load_model,
)
from tfdist.horovod.tape import DistributedGradientTape, PartialDistributedGradientTape
from tfdist.horovod.values import allgather, allreduce, broadcast, reducescatter
from tfdist.horovod.variables import broadcast_global_variables, broadcast_variables

Adasum = native.Adasum
Average = native.Average
Compression = native.Compression
Max = native.Max
Min = native.Min
ProcessSet = native.ProcessSet
Product = native.Product
Sum = native.Sum
add_process_set = native.add_process_set
allgather_object = native.allgather_object
alltoall = native.alltoall
broadcast_object = native.broadcast_object
ccl_built = native.ccl_built
cross_rank = native.cross_rank
cross_size = native.cross_size
cuda_built = native.cuda_built
ddl_built = native.ddl_built
global_process_set = native.global_process_set
gloo_built = native.gloo_built
gloo_enabled = native.gloo_enabled
grouped_allgather = native.grouped_allgather
grouped_allreduce = native.grouped_allreduce
grouped_reducescatter = native.grouped_reducescatter
is_homogeneous = native.is_homogeneous
is_initialized = native.is_initialized
join = native.join
local_rank = native.local_rank
local_size = native.local_size
mpi_built = native.mpi_built
mpi_enabled = native.mpi_enabled
mpi_threads_supported = native.mpi_threads_supported
nccl_built = native.nccl_built
rank = native.rank
remove_process_set = native.remove_process_set
rocm_built = native.rocm_built
shutdown = native.shutdown
size = native.size
start_timeline = native.start_timeline
stop_timeline = native.stop_timeline

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
