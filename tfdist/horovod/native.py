"""Horovod itself, or an error that explains how to install it."""

from typing import Any

from tfdist.cluster.detect import detect_membership

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

    Raises:
        RuntimeError: If each of several processes would be a job of its own.
    """
    native.init(*args, **kwargs)
    place = detect_membership()
    if native.size() == 1 < place.size and place.horovod_launcher is None:
        raise RuntimeError(
            f"Horovod does not join the processes that {place.launcher} has started. "
            f"Received: rank {place.rank} of {place.size}, and a Horovod of one "
            "process. Start the program with `tfdist run --collective horovod`."
        )
