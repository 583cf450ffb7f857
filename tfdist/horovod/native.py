"""Horovod itself, or an error that explains how to install it, and joint calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfdist.cluster.detect import detect_membership, is_elastic
from tfdist.cluster.ownership import take_rank
from tfdist.collectives.base import Collective
from tfdist.collectives.horovod.current import collective_of
from tfdist.compat.keras.install import install
from tfdist.horovod.keras_2 import accept_names_of_keras_2

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

# Names of `horovod.tensorflow` that need TensorFlow 1 -> the code to write instead.
_OF_TENSORFLOW_1 = {
    "BroadcastGlobalVariablesHook": "callbacks.BroadcastGlobalVariablesCallback(0)",
    "broadcast_": "broadcast_variables(variables, root_rank, inplace=True)",
    "broadcast_object_fn": "broadcast_object(value, root_rank)",
}


def __getattr__(name: str) -> Any:
    """Name what replaces a function of TensorFlow 1 in `tfdist.horovod` (PEP 562)."""
    if name not in _OF_TENSORFLOW_1:
        raise AttributeError(f"module 'tfdist.horovod' has no attribute {name!r}")
    raise AttributeError(
        f"tfdist.horovod has no {name}. Received: hvd.{name}. Write hvd."
        f"{_OF_TENSORFLOW_1[name]} instead."
    )


def init(*args: Any, **kwargs: Any) -> None:
    """Start Horovod and connect to the other processes of the job.

    Call it first. As in Horovod, it does not assign GPUs: next, give each process the
    GPU of its local rank with `tf.config.set_visible_devices`. From now on, Keras
    accepts some names of Keras 2, such as `optimizer.lr`, in this process.

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
    # Before the script looks up `model.compile`, for example.
    install(is_alone=True)
    accept_names_of_keras_2()
    place = detect_membership()
    take_rank(place.rank, place.size)
    native.init(*args, **kwargs)
    # The script may leave out ranks, and an elastic job may have lost them.
    is_whole = not args and kwargs.get("comm") is None and not is_elastic()
    if is_whole and native.size() == 1 < place.size:
        built = "with" if native.mpi_built() else "without"
        raise RuntimeError(
            f"Horovod does not join the processes that {place.launcher} has started. "
            f"Received: rank {place.rank} of {place.size}, and a Horovod of one "
            f"process, which is built {built} MPI. Start the program with `tfdist run "
            "--collective horovod`; with `mpirun` only if Horovod is built with its "
            "MPI."
        )


def tie(process_set: Any) -> Collective | None:
    """Connect the ranks of a process set once, unless the job is elastic."""
    # Horovod only says that some rank is gone, or hangs. Once per process set, not per
    # optimizer: a rank that alone reloads an optimizer must not wait for the others.
    is_joint = process_set.included() and process_set.size() > 1
    if not is_joint or is_elastic():
        return None
    with tf.init_scope():
        return collective_of(process_set)


@contextmanager
def joint_call(
    what: str, process_set: Any = native.global_process_set
) -> Iterator[None]:
    """Mark a block in which ranks wait for each other, unless the job is elastic.

    Ranks that wait in different calls, or for a rank that has ended, then raise an
    error that names them, where Horovod would wait forever.
    """
    collective = tie(process_set) if tf.executing_eagerly() else None
    if collective is None:
        yield
        return
    with collective.call(what):
        yield
