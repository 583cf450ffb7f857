"""Calling a training function again after ranks were lost or added."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from horovod.common.elastic import run_fn
from horovod.common.exceptions import HorovodInternalError

from tfdist.horovod.native import native

# What Horovod's errors hold: its own words, the source file of a library that it talks
# through, or the name of an operation.
_WORDS_OF_HOROVOD = ("Horovod", "gloo/", "NCCL", "nccl", "_Allreduce/")


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Make a training function go on when ranks are lost or added.

    Before each call the state is made equal on all ranks. When a rank is lost, the
    others go back to what they committed last; when hosts are added or removed, they
    keep what they have. Then all that are left join again, under new ranks, and the
    function is called again. It must look into the state for what is left to do.

    Errors that do not come from Horovod are raised, and end this rank. (Horovod's own
    decorator loses those of TensorFlow's type `UnknownError`: the function seems to
    have returned.) It takes Gloo, because MPI cannot go on without a rank.

    Args:
        func: A function whose first argument is the state.

    Returns:
        A function with the same arguments that returns what `func` returns at last.

    Raises:
        RuntimeError: When a rank was lost, if the job runs under MPI.

    Example:
        >>> import keras
        >>> import tfdist.horovod as hvd
        >>> from tfdist.horovod.elastic import KerasState
        >>> hvd.init()
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> @run
        ... def train(state):
        ...     x = keras.ops.ones((8, 4))
        ...     state.model.fit(x, x[:, :1], epochs=3 - state.epoch, verbose=0)
        ...     return "trained"
        >>> train(KerasState(model, epoch=0))
        'trained'
    """

    @functools.wraps(func)
    def call(state: Any, *args: Any, **kwargs: Any) -> Any:
        with failures_of_peers():
            return func(state, *args, **kwargs)

    recovering: Callable[..., Any] = run_fn(call, _join_again)
    return recovering


@contextmanager
def failures_of_peers() -> Iterator[None]:
    """Turn the errors of TensorFlow in which a lost rank shows into Horovod's own.

    Raises:
        HorovodInternalError: If a collective of Horovod has failed.
    """
    try:
        yield
    except tf.errors.UnknownError as error:
        if not any(word in error.message for word in _WORDS_OF_HOROVOD):
            raise
        raise HorovodInternalError(error.message) from error


def _join_again() -> None:
    """Leave the job, and join what has become of it."""
    if native.mpi_enabled():
        # MPI ends a process that starts it a second time, without a word.
        raise RuntimeError(
            "An elastic job needs Gloo: MPI cannot go on without a rank. Received: a "
            "job that was started under MPI. Start it with horovodrun --gloo."
        )
    native.shutdown()
    native.init()
