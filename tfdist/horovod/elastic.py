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

# The argument of Keras's callbacks.
Logs = dict[str, Any] | None
# Parts of Horovod's error messages: its name, its libraries, its operations.
_WORDS_OF_HOROVOD = ("Horovod", "gloo/", "NCCL", "nccl", "_Allreduce/")
# A true value that no other callback sets.
_END_OF_SHORT_EPOCH = "end of a short epoch"


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Make a training function continue when ranks are lost or added.

    Before each call, all ranks receive rank 0's state. When a rank is lost, the others
    return to their last commit; when hosts are added or removed, they keep their state.
    The processes then join again, with new ranks, and the function is called again. It
    must read the remaining work from the state.

    Errors that do not come from Horovod are raised and end this rank. (Horovod's own
    decorator swallows TensorFlow's `UnknownError`.) It requires Gloo, because MPI
    cannot continue after losing a rank.

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

    return run_fn(call, _join_again)


class TensorFlowState(ObjectState):
    """Elastic state of variables, and of values such as the epoch.

    A commit is a copy in the memory of each rank. `sync` also sends the variables to
    ranks that join later; Horovod's state under TensorFlow 2 does not.

    Args:
        variables: TensorFlow or Keras variables, in the same order on all ranks.
        session: A TensorFlow 1 argument; must be None.
        **kwargs: Further values, such as `epoch=0`, which become attributes of the
            state. They must be picklable, since they are sent to other ranks.

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
        if session is not None or not variables:
            raise ValueError(
                "TensorFlowState needs variables and no session, because TensorFlow 2 "
                "lists no global variables and has no sessions. Received: variables="
                f"{variables!r}, session={session!r}. For a Keras model, use "
                "KerasState(model)."
            )
        self.variables = [*variables]
        self._saved_values: list[Any] = []
        self._save_values()
        super().__init__(bcast_object=_broadcast_object, get_rank=native.rank, **kwargs)

    def save(self) -> None:
        """Copy the variables and values for `restore`."""
        self._save_values()
        super().save()

    def restore(self) -> None:
        """Return to the last saved copy."""
        for variable, value in zip(self.variables, self._saved_values, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Send rank 0's state to all ranks, and save it.

        Raises:
            RuntimeError: On every rank, if the ranks have different variables.
        """
        with failures_of_peers():
            broadcast_equal(self.variables, 0, "the elastic state")
        self._save_values()
        super().sync()

    def _save_values(self) -> None:
        """Copy the values of the variables."""
        # The array may share the variable's memory.
        self._saved_values = [np.array(one.numpy()) for one in self.variables]


class TensorFlowKerasState(TensorFlowState):
    """Elastic state of a model, its optimizer, and values such as the epoch.

    It creates the optimizer's variables, for which Horovod's examples train one step.
    It excludes the states of random layers, and gradients accumulated by
    `backward_passes_per_step` but not yet applied.

    Args:
        model: A built Keras model.
        optimizer: Its optimizer. Default None: the one it was compiled with.
        backend: A TensorFlow 1 argument without effect. Default None.
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
        if optimizer is None:
            optimizer = getattr(model, "optimizer", None)
        if not model.built or optimizer is None:
            raise ValueError(
                "The state must have a built model and an optimizer. Received: the "
                f"model {model.name!r} with built={model.built}, and optimizer="
                f"{optimizer!r}. Begin the model with keras.Input and compile it."
            )
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        self.model = model
        self.optimizer = optimizer
        super().__init__([*model.weights, *optimizer.variables], **kwargs)

    def restore(self) -> None:
        """Return to the last saved copy, discarding accumulated gradients."""
        self._drop_passes()
        super().restore()

    def sync(self) -> None:
        """Send rank 0's state to all ranks, save it, and discard accumulated gradients.

        Raises:
            RuntimeError: On every rank, if the ranks have different variables.
        """
        self._drop_passes()
        super().sync()

    def reset(self) -> None:
        """Retrace the step, in which the number of ranks may be a constant."""
        if self.model.train_function is not None:
            self.model.make_train_function(force=True)

    def _drop_passes(self) -> None:
        """Discard accumulated gradients, of which ranks may have different numbers."""
        for optimizer in optimizers_in(self.optimizer):
            if isinstance(optimizer, ReducingOptimizer):
                optimizer.drop_passes()


class KerasState(TensorFlowKerasState):
    """Elastic state of a model, its optimizer, and values such as the epoch.

    `hvd.elastic.run` sends rank 0's state to all ranks before each call, and returns to
    the last `commit` when a rank was lost.

    Args:
        model: A built Keras model.
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


class CommitStateCallback(keras.callbacks.Callback):
    """Callback that commits an elastic state every few batches, and after every epoch.

    When a rank is lost, the others return to the last commit. A commit copies the model
    and checks for added or removed hosts. Choose the interval so that neither the time
    of a commit nor the lost batches matter. Put this callback after those that update
    the state.

    Args:
        state: The state, such as `hvd.elastic.KerasState`.
        batches_per_commit: The number of batches between commits; 0 to commit only
            after each epoch. Default 1.

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
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Logs = None) -> None:
        """Restart the count, as on ranks that have just joined."""
        self.batches_remaining = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Commit every `batches_per_commit` batches."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Commit."""
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Callback that sets `state.batch` to the batch number, and to 0 after each epoch.

    If Keras knows the steps per epoch, the first epoch after an interruption is
    shortened: it counts on from the last committed batch, which is repeated. (Horovod
    does not shorten it, because Keras 3 ignores the number of steps that it sets.)

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

    def on_train_begin(self, logs: Logs = None) -> None:
        """Read the first batch from the state."""
        self.steps_per_epoch = self.params.get("steps")
        self._first_batch = self.state.batch

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Record the batch, and end a resumed epoch early."""
        self.state.batch = self._first_batch + batch
        if (
            self._first_batch
            and self.steps_per_epoch is not None
            # With more ranks than before, an epoch has fewer steps.
            and self.state.batch + 1 >= self.steps_per_epoch
            and not self.model.stop_training
        ):
            # End the loop over batches; on_epoch_end resets it.
            self.model.stop_training = _END_OF_SHORT_EPOCH

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Reset the batch number for the next epoch."""
        self.state.batch = 0
        self._first_batch = 0
        if self.model.stop_training == _END_OF_SHORT_EPOCH:
            self.model.stop_training = False


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Callback that counts finished epochs in `state.epoch`, across interruptions.

    After an interruption `fit` is called again for the remaining epochs. Both
    `fit(epochs=total - state.epoch)`, which counts from 0, and `fit(epochs=total,
    initial_epoch=state.epoch)` end with `state.epoch == total`. Horovod counts the
    earlier epochs twice in the second form (horovod#2844).

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

    def on_train_begin(self, logs: Logs = None) -> None:
        """Discard the count of an earlier `fit`."""
        self._epochs_before = None

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Compute the offset between Keras's epoch number and the finished epochs."""
        if self._epochs_before is None:
            self._epochs_before = self.state.epoch - epoch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Count the finished epoch."""
        assert self._epochs_before is not None  # on_epoch_begin was called before.
        self.state.epoch = self._epochs_before + epoch + 1


@contextmanager
def failures_of_peers() -> Iterator[None]:
    """Convert TensorFlow's error for a lost rank to Horovod's."""
    try:
        yield
    except tf.errors.UnknownError as error:
        if not any(word in error.message for word in _WORDS_OF_HOROVOD):
            raise
        raise HorovodInternalError(error.message) from error


def _join_again() -> None:
    """Leave the job, and join the new one."""
    if native.mpi_enabled():
        # A second MPI_Init silently ends the process.
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
