"""Starting Horovod, and what it knows of this process and of itself."""

from typing import Any

from tfdist.horovod.native import native

Average = native.Average
Sum = native.Sum
Adasum = native.Adasum
Min = native.Min
Max = native.Max
Product = native.Product

Compression = native.Compression
ProcessSet = native.ProcessSet
global_process_set = native.global_process_set
add_process_set = native.add_process_set
remove_process_set = native.remove_process_set

shutdown = native.shutdown
is_initialized = native.is_initialized
start_timeline = native.start_timeline
stop_timeline = native.stop_timeline

rank = native.rank
size = native.size
local_rank = native.local_rank
local_size = native.local_size
cross_rank = native.cross_rank
cross_size = native.cross_size
is_homogeneous = native.is_homogeneous

mpi_threads_supported = native.mpi_threads_supported
mpi_enabled = native.mpi_enabled
mpi_built = native.mpi_built
gloo_enabled = native.gloo_enabled
gloo_built = native.gloo_built
nccl_built = native.nccl_built
ddl_built = native.ddl_built
ccl_built = native.ccl_built
cuda_built = native.cuda_built
rocm_built = native.rocm_built


def init(*args: Any, **kwargs: Any) -> None:
    """Start Horovod and meet the other processes of the job.

    Call it first. It leaves the GPUs alone, as Horovod does: give each process the one
    of its local rank with `tf.config.set_visible_devices` next.

    Args:
        *args: What Horovod takes: `comm`, the ranks or MPI communicators that make up
            the job. Default all.
        **kwargs: The same by name, and `process_sets`, those to know from the start.

    Example:
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> hvd.rank(), hvd.size()
        (0, 1)
    """
    native.init(*args, **kwargs)
