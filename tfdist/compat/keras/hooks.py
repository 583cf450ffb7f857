"""The interface between the patches of Keras and a strategy, by subject.

Defaults suit a strategy whose processes need no agreement.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import tensorflow as tf


class InputHooks(Protocol):
    """Batches, and the functions that process them."""

    def distribute(self, adapter: Any) -> Any:
        """Return the batches of a Keras data adapter, as they are or as `Shard`s."""

    def function_of(
        self, trainer: Any, what: str, step: Any
    ) -> Callable[[Any], Any] | None:
        """Return a replacement for Keras's function of a step, None to keep it.

        `what` is "train_step", "test_step" or "predict_step".
        """
        return None

    def run_function(
        self,
        trainer: Any,
        what: str,
        call: Callable[[], Any],
        *,
        is_joint: bool,
        is_first: bool = False,
    ) -> Any:
        """Call a model's function on all ranks, or on this one alone.

        `trainer` is None in predictions; `is_first` marks the first step to train.
        """
        return call()

    def predicting(self, trainer: Any) -> AbstractContextManager[None]:
        """Mark a `predict` of a model, which starts from equal variables."""


class KerasStep(Protocol):
    """The part of the global batch that a step computes."""

    def share(self) -> Any:
        """Return this rank's share of the step's global batch, a float64 scalar."""

    def is_by_row(self, value: Any) -> bool:
        """Return whether the first dimension of a value is the rows of this rank."""

    def as_traced(self, decision: bool) -> bool:
        """Return a decision, in a simulation of the step that of its trace."""

    def sum(self, value: Any, what: str) -> Any:
        """Sum a value of the step over the ranks that have rows."""


class StepHooks(Protocol):
    """The step that Keras is tracing, or running eagerly."""

    @property
    def step(self) -> KerasStep | None:
        """The step, if its replica has a part of the batch only."""

    def draw_seed(self, draw: Callable[[], Any], state: Any) -> Any:
        """Draw a seed from the state of a generator, another on each rank if need be.

        The state is None for the seeds of a random operation of TensorFlow.
        """
        return draw()

    def note_assigned(self, variable: Any, value: Any = None) -> None:
        """Record that a step assigns a variable; no-op outside of a step."""
        return


class GradientPlan(NamedTuple):
    """Gradients of one rank, and what their sum over ranks has to know of them.

    `are_shares` tells that they are multiplied by the rank's share of the global batch.
    `owners` are the ranks that need the sums, or their own rows of them; empty: all.
    """

    gradients: Sequence[Any]
    # Of the gradients, as far as known.
    variables: Sequence[Any] = ()
    are_shares: bool = False
    owners: Sequence[int] = ()


class GradientHooks(Protocol):
    """Gradients before an optimizer applies them; by default already summed."""

    # True if the devices of this process share the variables of optimizers.
    updates_once: bool = False
    # True if the current gradients are already sums over all ranks.
    are_reduced: bool = False

    @property
    def is_updating(self) -> bool:
        """True while an optimizer makes the same update on all ranks."""
        return False

    def prepare_gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> GradientPlan:
        """Fill in gradients that only other ranks have, and weight all by rows."""
        return GradientPlan(gradients, variables)

    def reduce_gradients(self, plan: GradientPlan) -> list[Any]:
        """Sum prepared gradients over ranks, or on the owners of their weights."""
        return list(plan.gradients)

    def weight_of_lookups(self) -> Any:
        """Return the weight of the gradients of rows that other ranks have.

        None in code that not all ranks run together.
        """
        return None

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

    def fitting(self, trainer: Any, root_rank: int) -> AbstractContextManager[None]:
        """Mark a `fit` whose initial variables are those of `root_rank`."""

    def build(self, trainer: Any, *, is_single_step: bool) -> None:
        """Synchronize a model over ranks right after it is built."""
        return

    def training_begins(self, trainer: Any, watched: Sequence[str]) -> None:
        """Agree on the batch events at which callbacks of any rank may decide."""
        return

    def restored(
        self, trainer: Any, epoch: int | None, *, restores: bool
    ) -> int | None:
        """Synchronize again, if a callback of any rank may have restored something.

        Return the epoch in which the `fit` begins, given this rank's.
        """
        return epoch

    def callbacks_called(self, trainer: Any, event: str) -> None:
        """Agree on the decisions of callbacks after an event of theirs."""
        return

    def note_epoch(self, number: int, began: float, logs: Mapping[str, float]) -> None:
        """Record the number, the begin and the logs of an epoch that ends."""
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

    def metrics_result(
        self, trainer: Any, result: Callable[[Any], Any], logs: Any
    ) -> Any:
        """Call `result(logs)` with the metric states of all ranks."""

    def states_between_steps(self, variables: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Return metric variables with their values over all ranks; none if unknown."""
        return []

    def metrics_reset(self, trainer: Any) -> None:
        """Finish the steps in flight, and forget results, as metrics are reset."""
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
    return getattr(extended, "keras_hooks", None)


def hooks_of(strategy: Any) -> KerasHooks | None:
    """Return the hooks of a tfdist strategy of several processes, or None."""
    hooks = any_hooks_of(strategy)
    return None if hooks is None or hooks.is_alone else hooks


def current_hooks() -> KerasHooks | None:
    """Return the hooks of the strategy whose replica runs this code, if any."""
    return hooks_of(tf.distribute.get_strategy())


def current_step() -> KerasStep | None:
    """Return the step of Keras in which the current replica runs this code, if any."""
    hooks = current_hooks()
    return None if hooks is None else hooks.step


def hooks_of_model(model: Any) -> KerasHooks | None:
    """Return the hooks of a model's strategy of several processes, if any."""
    return hooks_of(getattr(model, "_distribute_strategy", None))


def any_hooks_of_model(model: Any) -> KerasHooks | None:
    """Return the hooks of the tfdist strategy of a model, if any."""
    return any_hooks_of(getattr(model, "_distribute_strategy", None))
