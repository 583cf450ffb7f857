"""Horovod itself, or an error that tells how to install it."""

from typing import Any

try:
    import horovod.tensorflow as _horovod
except ModuleNotFoundError as problem:
    raise ImportError(
        "tfdist.horovod needs Horovod. Received: an environment without it "
        f"({problem}). Run `tfdist horovod install`."
    ) from problem
except Exception as problem:
    # Its library names symbols of the TensorFlow that it was built for.
    raise ImportError(
        "tfdist.horovod needs a Horovod that was built for this TensorFlow. Received: "
        f"one that cannot be loaded ({type(problem).__name__}: {problem}). "
        "Run `tfdist horovod install` again; `tfdist horovod check` says more."
    ) from problem

# Horovod has no types.
native: Any = _horovod


def init(*args: Any, **kwargs: Any) -> None:
    """Start Horovod and connect to the other processes of the job.

    Call it first. It leaves the GPUs alone, as Horovod does: give each process the one
    of its local rank with `tf.config.set_visible_devices` next.

    Args:
        *args: The arguments of Horovod: `comm`, the ranks or MPI communicators that
            make up the job. Default all.
        **kwargs: The same by name, and `process_sets`, the sets to register at once.

    Example:
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> hvd.rank(), hvd.size()
        (0, 1)
    """
    native.init(*args, **kwargs)
