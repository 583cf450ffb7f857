"""Elastic jobs: training that continues when ranks are lost or added."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from horovod.common.elastic import ObjectState, run_fn
from horovod.common.exceptions import HorovodInternalError

from tfdist.compat.keras.own_reduction import optimizers_in
from tfdist.horovod.native import native
from tfdist.horovod.variables import broadcast_equal
from tfdist.horovod.wrapped_optimizer import ReducingOptimizer

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "TensorFlowKerasState",
    "TensorFlowState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]

# Parts of Horovod's errors: its own words, the source file of a library that it uses,
# or the name of an operation.
_WORDS_OF_HOROVOD = ("Horovod", "gloo/", "NCCL", "nccl", "_Allreduce/")
# As true as True, but set by no other callback.
_END_OF_SHORT_EPOCH = "end of a short epoch"


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Make a training function continue when ranks are lost or added.

    Before each call the state is made equal on all ranks. When a rank is lost, the
    others return to their last commit; when hosts are added or removed, they keep their
    state. Then the remaining processes join again, with new ranks, and the function is
    called again. It must read from the state how much work is left.

    Errors that do not come from Horovod are raised, and end this rank. (Horovod's own
    decorator loses TensorFlow's `UnknownError`: the function seems to have returned.)
    It needs Gloo, because MPI cannot continue without a rank.

    Args:
        func: A function whose first argument is the state.

    Returns:
        A function with the same arguments that returns the result of the last call.

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


class TensorFlowState(ObjectState):  # type: ignore[misc]
    """The state of variables, and values such as the epoch, over interruptions.

    A commit is a copy in the memory of each rank. (In Horovod under TensorFlow 2,
    variables are sent when the state is created and never again; here `sync` sends
    them, so that ranks that join later have them, too.)

    Args:
        variables: Variables of TensorFlow or of Keras, in the same order on all ranks.
        session: Of TensorFlow 1; must be None.
        **kwargs: Further values, such as `epoch=0`, which become attributes of the
            state. They are sent to other ranks, so pickle must be able to hold them.

    Raises:
        ValueError: If there are no variables, or if a session is given.

    Example:
        >>> import tensorflow as tf
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> variable = tf.Variable(1.0)
        >>> state = TensorFlowState([variable], epoch=0)
        >>> state.epoch = variable.assign(7.0).numpy()
        >>> state.restore()
        >>> float(variable.numpy()), state.epoch
        (1.0, 0)
    """

    def __init__(
        self,
        variables: Sequence[Any] | None = None,
        session: Any = None,
        **kwargs: Any,
    ) -> None:
        if session is not None:
            raise ValueError(
                "session must be None, because TensorFlow 2 has none. "
                f"Received: session={session!r}. Leave it out."
            )
        if not variables:
            raise ValueError(
                "variables must hold the variables of the state, because TensorFlow 2 "
                f"does not list them all. Received: variables={variables!r}. "
                "For a model of Keras, use KerasState(model)."
            )
        self.variables = [*variables]
        self._saved_values: list[Any] = []
        self._save_values()
        super().__init__(bcast_object=_broadcast_object, get_rank=native.rank, **kwargs)

    def save(self) -> None:
        """Copy the variables and values, for `restore`."""
        self._save_values()
        super().save()

    def restore(self) -> None:
        """Return to the last saved copy."""
        for variable, value in zip(self.variables, self._saved_values, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Send rank 0's state to every rank, and save it.

        Raises:
            RuntimeError: On every rank, if the ranks have different variables.
        """
        with failures_of_peers():
            broadcast_equal(self.variables, 0, "the elastic state")
        self._save_values()
        super().sync()

    def _save_values(self) -> None:
        """Copy the values of the variables."""
        # The array may share the memory of the variable.
        self._saved_values = [np.array(one.numpy()) for one in self.variables]


class TensorFlowKerasState(TensorFlowState):
    """The state of a model, its optimizer, and values such as the epoch.

    It creates the optimizer's variables, for which Horovod's examples train one step.
    It holds neither the states of random layers, nor gradients that
    `backward_passes_per_step` has added up and not applied yet.

    Args:
        model: A Keras model, built.
        optimizer: Its optimizer. Default None: the one it was compiled with.
        backend: The source of the session in TensorFlow 1. It has no effect since
            TensorFlow 2, nor in Horovod. Default None.
        **kwargs: Further values, such as `epoch=0` and `batch=0`, which become
            attributes of the state.

    Raises:
        ValueError: If the model is not built, or has no optimizer.

    Example:
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> state = TensorFlowKerasState(model, keras.optimizers.Adam(), epoch=0)
        >>> len(model.weights), len(state.variables)
        (2, 8)
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: Any = None,
        backend: Any = None,
        **kwargs: Any,
    ) -> None:
        if not model.built:
            raise ValueError(
                f"The model must be built. Received: the model {model.name!r} without "
                "variables. Begin it with keras.Input, or call "
                "model.build(input_shape)."
            )
        if optimizer is None:
            optimizer = getattr(model, "optimizer", None)
        if optimizer is None:
            raise ValueError(
                "The state must have an optimizer. Received: optimizer=None, and the "
                f"model {model.name!r}, which was not compiled with one. "
                "Compile the model first, or give the optimizer."
            )
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        self.model = model
        self.optimizer = optimizer
        super().__init__([*model.weights, *optimizer.variables], **kwargs)

    def restore(self) -> None:
        """Return to the last saved copy, and drop the passes of an incomplete step."""
        self._drop_passes()
        super().restore()

    def sync(self) -> None:
        """Send rank 0's state to every rank, and save it.

        All ranks drop the passes of an incomplete step, of which some ranks may have
        made more than others.

        Raises:
            RuntimeError: On every rank, if the ranks have different variables.
        """
        self._drop_passes()
        super().sync()

    def reset(self) -> None:
        """Compile the step again: the number of ranks may be a constant of it."""
        if self.model.train_function is not None:
            self.model.make_train_function(force=True)

    def _drop_passes(self) -> None:
        """Drop the sums of gradients that were not applied yet."""
        for optimizer in optimizers_in(self.optimizer):
            if isinstance(optimizer, ReducingOptimizer):
                optimizer.drop_passes()


class KerasState(TensorFlowKerasState):
    """The state of a model, its optimizer, and values such as the epoch.

    `hvd.elastic.run` makes it equal on all ranks before each call, and returns to the
    last `commit` when a rank was lost.

    Args:
        model: A Keras model, built.
        optimizer: Its optimizer. Default None: the one it was compiled with.
        **kwargs: Further values, such as `epoch=0` and `batch=0`, which become
            attributes of the state.

    Raises:
        ValueError: If the model is not built, or has no optimizer.

    Example:
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> state = KerasState(model, batch=0, epoch=0)
        >>> state.batch = 7
        >>> state.commit()
        >>> state.batch = 8
        >>> state.restore()
        >>> state.batch
        7
    """

    def __init__(
        self, model: keras.Model, optimizer: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(model, optimizer=optimizer, **kwargs)


class CommitStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Commits an elastic state every few batches, and at the end of every epoch.

    When a rank is lost, the others return to the last commit. A commit copies the
    model, and checks whether hosts were added or removed: choose an interval that is
    long enough for its time not to matter, and short enough for the lost batches.

    Put it after the callbacks that write into the state.

    Args:
        state: The state, such as `hvd.elastic.KerasState`.
        batches_per_commit: The number of batches between commits. Default 1.

    Raises:
        ValueError: If `batches_per_commit` is not positive.

    Example:
        >>> class State:
        ...     commits = 0
        ...     def commit(self):
        ...         self.commits += 1
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x, state = keras.ops.ones((8, 4)), State()
        >>> commit = CommitStateCallback(state, batches_per_commit=2)
        >>> history = model.fit(
        ...     x, x[:, :1], batch_size=2, verbose=0, callbacks=[commit]
        ... )
        >>> state.commits
        3
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        if batches_per_commit < 1:
            raise ValueError(
                "batches_per_commit must be positive. "
                f"Received: batches_per_commit={batches_per_commit}. "
                "Use 1 to commit after every batch."
            )
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Start counting again, as ranks that have just joined do."""
        self.batches_remaining = self.batches_per_commit

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Commit every `batches_per_commit` batches."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Commit."""
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Writes into `state.batch` the number of the batch, and 0 at the end of an epoch.

    If Keras knows the steps of an epoch, the first epoch after an interruption starts
    at the batch that was committed last, which is repeated. (Horovod writes the number
    of steps where Keras no longer reads it, so that no epoch is shortened.)

    Args:
        state: The state, such as `hvd.elastic.KerasState(model, batch=0)`.

    Example:
        >>> class State:
        ...     batch = 3
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> update = UpdateBatchStateCallback(State())
        >>> history = model.fit(
        ...     x, x[:, :1], batch_size=1, verbose=0, callbacks=[update]
        ... )
        >>> int(model.optimizer.iterations.numpy())
        5
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.steps_per_epoch: int | None = None
        self._first_batch = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Read the first batch from the state."""
        self.steps_per_epoch = self.params.get("steps")
        self._first_batch = self.state.batch

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Record the batch, and end an epoch that was begun before early."""
        self.state.batch = self._first_batch + batch
        if (
            self._first_batch
            and self.steps_per_epoch is not None
            # With more ranks than before an epoch has fewer steps than that.
            and self.state.batch + 1 >= self.steps_per_epoch
            and not self.model.stop_training
        ):
            # It ends the loop over the batches; see on_epoch_end.
            self.model.stop_training = _END_OF_SHORT_EPOCH

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Start the next epoch with its first batch."""
        self.state.batch = 0
        self._first_batch = 0
        if self.model.stop_training == _END_OF_SHORT_EPOCH:
            self.model.stop_training = False


class UpdateEpochStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Writes the number of finished epochs into `state.epoch`, over interruptions.

    After an interruption `fit` is called again, for the remaining epochs. Both
    `fit(epochs=total - state.epoch)`, which counts from 0, and `fit(epochs=total,
    initial_epoch=state.epoch)` end with `state.epoch == total`. In Horovod the second
    counts the epochs before the interruption twice (horovod#2844).

    Args:
        state: The state, such as `hvd.elastic.KerasState(model, epoch=0)`.

    Example:
        >>> class State:
        ...     epoch = 0
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x, state = keras.ops.ones((8, 4)), State()
        >>> update = UpdateEpochStateCallback(state)
        >>> history = model.fit(
        ...     x, x[:, :1], epochs=3, verbose=0, callbacks=[update]
        ... )
        >>> state.epoch
        3
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._epochs_before: int | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Forget the count of an earlier `fit`."""
        self._epochs_before = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Compare the number that Keras begins with to the finished epochs."""
        if self._epochs_before is None:
            self._epochs_before = self.state.epoch - epoch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Count the epoch that ends."""
        assert self._epochs_before is not None  # on_epoch_begin was called before.
        self.state.epoch = self._epochs_before + epoch + 1


@contextmanager
def failures_of_peers() -> Iterator[None]:
    """Convert TensorFlow's errors for a lost rank to Horovod's own."""
    try:
        yield
    except tf.errors.UnknownError as error:
        if not any(word in error.message for word in _WORDS_OF_HOROVOD):
            raise
        raise HorovodInternalError(error.message) from error


def _join_again() -> None:
    """Leave the job, and join the new one."""
    if native.mpi_enabled():
        # MPI silently ends a process that starts it a second time.
        raise RuntimeError(
            "An elastic job needs Gloo: MPI cannot go on without a rank. Received: a "
            "job that was started under MPI. Start it with horovodrun --gloo."
        )
    native.shutdown()
    native.init()


def _broadcast_object(value: Any) -> Any:
    """Return rank 0's value."""
    with failures_of_peers():
        return native.broadcast_object(value, name="tfdist.elastic")
