"""Horovod itself, or an error that explains how to install it."""

from typing import Any

try:
    import horovod.tensorflow as _horovod
except ModuleNotFoundError as problem:
    raise ImportError(
        "tfdist.horovod needs Horovod. Received: an environment without it "
        f"({problem}). Run `tfdist horovod install`."
    ) from problem
except Exception as problem:
    # Its library needs symbols of the TensorFlow that it was built for.
    raise ImportError(
        "tfdist.horovod needs a Horovod that was built for this TensorFlow. Received: "
        f"one that cannot be loaded ({type(problem).__name__}: {problem}). "
        "Run `tfdist horovod install` again; `tfdist horovod check` says more."
    ) from problem

# Horovod has no types.
native: Any = _horovod

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


def init(*args: Any, **kwargs: Any) -> None:
    """Start Horovod and connect to the other processes of the job.

    Call it first. As in Horovod, it does not assign GPUs: next, give each process the
    GPU of its local rank with `tf.config.set_visible_devices`.

    Args:
        *args: Horovod's arguments: `comm`, the ranks or MPI communicators of the job.
            Default all.
        **kwargs: The same by name, and `process_sets`, the process sets to register.

    Example:
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> hvd.rank(), hvd.size()
        (0, 1)
    """
    native.init(*args, **kwargs)
