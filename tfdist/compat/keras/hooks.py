"""The interface between the patches of Keras and a strategy, by subject.

Gradients cross it twice in a step: `prepare_gradients`, then `reduce_gradients`. The
defaults suit a strategy whose processes have nothing to agree on.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import tensorflow as tf


class FitDecisions(Protocol):
    """Decisions of callbacks in one `fit`, on which all ranks agree."""

    def batch_begins(self) -> None:
        """Agree before a batch, if any rank may have decided something."""

    def batch_ended(self) -> None:
        """Agree after a batch, or defer this rank's decision to the epoch's end."""

    def agree(self) -> None:
        """Make the decisions of every rank hold on all."""


class InputHooks(Protocol):
    """Batches, and the functions that take them."""

    def distribute(self, adapter: Any) -> Any:
        """Return the batches that a Keras data adapter holds, or `Shard`s of them."""

    def function_of(
        self, trainer: Any, step: Any, *, is_training: bool
    ) -> Callable[[Any], Any] | None:
        """Return a replacement for Keras's function of a step, None to keep it."""
        return None

    def predict_function_of(self, trainer: Any) -> Callable[[Any], Any] | None:
        """Return a replacement for Keras's function of predictions, None to keep it."""
        return None

    def predicting(self, trainer: Any) -> AbstractContextManager[None]:
        """Mark a `predict` of a model."""

    def call_of(
        self, trainer: Any, what: str, *, is_joint: bool
    ) -> AbstractContextManager[None]:
        """Mark a call of a model's function, joint or a rank's own."""
        return nullcontext()


class StepHooks(Protocol):
    """The part of the global batch that a step computes."""

    @property
    def in_step(self) -> bool:
        """Whether a step of Keras is being traced, or run eagerly."""

    def share(self) -> Any:
        """Return this rank's share of the step's global batch, a float64 scalar."""

    def sum_over_ranks(self, value: Any, what: str) -> Any:
        """Sum a value of the step over the ranks that have rows."""

    def fold_seed(self, seed: Any) -> Any:
        """Make a random seed this rank's own, where ranks must differ."""

    def note_assigned(self, variable: Any) -> None:
        """Note that a variable is assigned, if it is so in a step."""
        return


class GradientHooks(Protocol):
    """Gradients on their way to an optimizer; by default they are sums already."""

    # Whether the devices of this process share the variables of optimizers.
    updates_once: bool = False
    # Whether the gradients that come now are sums over all ranks.
    are_reduced: bool = False

    def prepare_gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        """Fill in gradients that only other ranks have, and weigh all by rows."""
        return list(gradients)

    def reduce_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Sum prepared gradients over ranks."""
        return list(gradients)

    def gradients_are_reduced(self) -> AbstractContextManager[None]:
        """Mark a block in which an optimizer gets gradients that are already sums."""
        return nullcontext()

    def scale_loss_of(self, optimizer: Any) -> Any:
        """Wrap an optimizer that is to update a model in float16."""


class FitHooks(Protocol):
    """Start, epochs and end of `fit` and `evaluate`."""

    def fitting(self, trainer: Any, root_rank: int) -> AbstractContextManager[None]:
        """Mark a `fit` of a model; all ranks start with the variables of one."""

    def build(self, trainer: Any, *, is_single_step: bool) -> None:
        """Start a model, just built, from equal states on all ranks."""
        return

    def training_begins(
        self, trainer: Any, *, watches_begin: bool, watches_end: bool
    ) -> None:
        """Agree on which batches callbacks of any rank may decide something."""
        return

    def restored(self, trainer: Any, *, restores: bool) -> bool:
        """Start equal again, if a callback of any rank may have restored something."""
        return False

    def first_epoch(self, epoch: int | None) -> int | None:
        """Return the epoch in which rank 0 begins."""
        return epoch

    def decisions(self, trainer: Any) -> FitDecisions | None:
        """Return the decisions of the `fit` of a model, None outside of one."""
        return None

    def epoch_ended(self, trainer: Any) -> None:
        """Make the state of layers equal, after the last step of an epoch."""
        return

    def metrics_result(
        self, trainer: Any, result: Callable[[Any], Any], logs: Any
    ) -> Any:
        """Call `result(logs)` with the metric states of all ranks."""

    def metrics_reset(self, trainer: Any) -> None:
        """Finish the steps in flight, whose metrics are reset next."""
        return


class KerasHooks(InputHooks, StepHooks, GradientHooks, FitHooks, Protocol):
    """A strategy's side of the patches; one object for each strategy."""

    @property
    def rank(self) -> int:
        """The number of this process."""

    @property
    def is_alone(self) -> bool:
        """Whether there is no other process."""

    @property
    def has_peers(self) -> bool:
        """Whether other processes run the same calls of Keras, each on its own rows."""


def any_hooks_of(strategy: Any) -> KerasHooks | None:
    """Return the hooks of a strategy of tfdist; None for any other strategy."""
    hooks: KerasHooks | None = getattr(strategy.extended, "keras_hooks", None)
    return hooks


def hooks_of(strategy: Any) -> KerasHooks | None:
    """Return the hooks of a strategy of several processes; None for any other."""
    hooks = any_hooks_of(strategy)
    return None if hooks is None or hooks.is_alone else hooks


def current_hooks() -> KerasHooks | None:
    """Return the hooks of the strategy in whose replica this code runs, if any."""
    return hooks_of(tf.distribute.get_strategy())


def hooks_of_model(model: Any) -> KerasHooks | None:
    """Return the hooks of the processes that a model was made for, if any."""
    strategy = getattr(model, "_distribute_strategy", None)
    return None if strategy is None else hooks_of(strategy)


def any_hooks_of_model(model: Any) -> KerasHooks | None:
    """Return the hooks of the tfdist strategy that a model was made under, if any."""
    strategy = getattr(model, "_distribute_strategy", None)
    return None if strategy is None else any_hooks_of(strategy)
