"""The interface between the patches of Keras and a strategy, by subject.

Defaults suit a strategy whose processes need no agreement.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import tensorflow as tf


class InputHooks(Protocol):
    """Batches, and the functions that process them."""

    def distribute(self, adapter: Any) -> Any:
        """Return the batches of a Keras data adapter, as they are or as `Shard`s."""

    def function_of(
        self, trainer: Any, step: Any, *, is_training: bool
    ) -> Callable[[Any], Any] | None:
        """Return a replacement for Keras's step function, None to keep it."""
        return None

    def predict_function_of(self, trainer: Any) -> Callable[[Any], Any] | None:
        """Return a replacement for Keras's predict function, None to keep it."""
        return None

    def predicting(self, trainer: Any) -> AbstractContextManager[None]:
        """Mark a `predict` of a model."""

    def call_of(
        self, trainer: Any, what: str, *, is_joint: bool
    ) -> AbstractContextManager[None]:
        """Mark a call of a model's function, run by all ranks or by this one alone."""
        return nullcontext()


class StepHooks(Protocol):
    """The part of the global batch that a step computes."""

    @property
    def in_step(self) -> bool:
        """Return whether Keras is tracing a step, or running it eagerly."""

    def share(self) -> Any:
        """Return this rank's share of the step's global batch, a float64 scalar."""

    def is_by_row(self, value: Any) -> bool:
        """Return whether the first dimension of a value is the rows of this rank."""
        # Lengths of batches are not static.
        return bool(value.shape.rank) and value.shape[0] is None

    def sum_over_ranks(self, value: Any, what: str) -> Any:
        """Sum a value of the step over the ranks that have rows."""

    def before_draw(self, state: Any) -> None:
        """Prepare the state of a generator of seeds, which is about to draw."""
        return

    def fold_seed(self, seed: Any) -> Any:
        """Derive a seed of this rank, if ranks must draw different numbers."""

    def note_random_operation(self) -> None:
        """Record that a random operation of TensorFlow gets its seeds."""
        return

    def note_assigned(self, variable: Any, value: Any = None) -> None:
        """Record that a step assigns a variable; no-op outside of a step."""
        return


class GradientHooks(Protocol):
    """Gradients before an optimizer applies them; by default already summed."""

    # True if the devices of this process share the variables of optimizers.
    updates_once: bool = False
    # True if the current gradients are already sums over all ranks.
    are_reduced: bool = False

    def prepare_gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        """Fill in gradients that only other ranks have, and weight all by rows."""
        return list(gradients)

    def reduce_gradients(
        self, gradients: Sequence[Any], owners: Sequence[int] = ()
    ) -> list[Any]:
        """Sum prepared gradients over ranks, or on the owners of their weights."""
        return list(gradients)

    def gradient_state(self, variables: Sequence[Any]) -> list[Any]:
        """Return what the sum of these variables' gradients keeps for the next step."""
        return []

    def gradients_are_reduced(self) -> AbstractContextManager[None]:
        """Mark a block in which an optimizer gets gradients that are already summed."""
        return nullcontext()

    def applying(self) -> AbstractContextManager[None]:
        """Mark a block in which an optimizer applies gradients."""
        return nullcontext()

    def scale_loss_of(self, optimizer: Any) -> Any:
        """Wrap the optimizer of a float16 model in a loss-scale optimizer."""


class FitHooks(Protocol):
    """Start, epochs and end of `fit` and `evaluate`."""

    # What the bits depend on instead of the processes; None if on these, too.
    arithmetic: str | None = None

    def fitting(self, trainer: Any, root_rank: int) -> AbstractContextManager[None]:
        """Mark a `fit` whose initial variables are those of `root_rank`."""

    def build(self, trainer: Any, *, is_single_step: bool) -> None:
        """Synchronize a model over ranks right after it is built."""
        return

    def synchronize(self, trainer: Any) -> None:
        """Give the variables of a model equal values on all ranks."""
        return

    def training_begins(self, trainer: Any, watched: Sequence[str]) -> None:
        """Agree on the batch events at which callbacks of any rank may decide."""
        return

    def restored(self, trainer: Any, *, restores: bool) -> bool:
        """Synchronize again, if a callback of any rank may have restored something."""
        return False

    def first_epoch(self, epoch: int | None) -> int | None:
        """Return the epoch in which rank 0 begins."""
        return epoch

    def callbacks_called(self, trainer: Any, event: str) -> None:
        """Agree on the decisions of callbacks after an event of theirs."""
        return

    def first_step_returned(self, trainer: Any) -> None:
        """Check the first step of a `fit`, which has returned."""
        return

    def has_written(self, file: str, error: Exception | None = None) -> None:
        """Tell the other ranks that the chief has written a file, or why it has not."""
        return

    def wait_for_file(self, file: str) -> bool:
        """Wait until the chief has written a file, or raise the error that it met.

        Return False if the chief went on without writing it.
        """
        return True

    def epoch_ended(self, trainer: Any) -> None:
        """Synchronize the state of layers after the last step of an epoch."""
        return

    def step_returned(self, trainer: Any, what: str, logs: Any) -> None:
        """Record what a "train_step" or "test_step" of all ranks returned."""
        return

    def metrics_result(
        self, trainer: Any, result: Callable[[Any], Any], logs: Any
    ) -> Any:
        """Call `result(logs)` with the metric states of all ranks."""

    def is_of_loop(self, variables: Sequence[Any]) -> bool:
        """Return whether a loop of the user's own has assigned one of the variables."""
        return False

    def states_of_all(self, variables: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Return metric variables with their values over all ranks."""
        return []

    def metrics_reset(self, trainer: Any) -> None:
        """Finish the steps in flight before the model's metrics are reset."""
        return


class KerasHooks(InputHooks, StepHooks, GradientHooks, FitHooks, Protocol):
    """A strategy's implementation of the hooks; one object per strategy."""

    @property
    def rank(self) -> int:
        """The number of this process."""

    @property
    def is_alone(self) -> bool:
        """Return whether this is the only process."""

    @property
    def has_peers(self) -> bool:
        """Return whether other processes make the same calls on their own rows."""


def any_hooks_of(strategy: Any) -> KerasHooks | None:
    """Return the hooks of a tfdist strategy, None for any other strategy or none."""
    extended = getattr(strategy, "extended", None)
    hooks: KerasHooks | None = getattr(extended, "keras_hooks", None)
    return hooks


def hooks_of(strategy: Any) -> KerasHooks | None:
    """Return the hooks of a tfdist strategy of several processes, or None."""
    hooks = any_hooks_of(strategy)
    return None if hooks is None or hooks.is_alone else hooks


def current_hooks() -> KerasHooks | None:
    """Return the hooks of the strategy whose replica runs this code, if any."""
    return hooks_of(tf.distribute.get_strategy())


def hooks_of_model(model: Any) -> KerasHooks | None:
    """Return the hooks of a model's strategy of several processes, if any."""
    return hooks_of(getattr(model, "_distribute_strategy", None))


def any_hooks_of_model(model: Any) -> KerasHooks | None:
    """Return the hooks of the tfdist strategy of a model, if any."""
    return any_hooks_of(getattr(model, "_distribute_strategy", None))
