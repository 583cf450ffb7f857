"""What a strategy answers when the patches ask it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import tensorflow as tf


class FitDecisions(Protocol):
    """What the ranks agree on during one `fit`."""

    def batch_begins(self) -> None:
        """Agree before a batch, if any rank may have decided something."""

    def batch_ended(self) -> None:
        """Agree after a batch, or put a lonely decision off to the epoch's end."""

    def agree(self) -> None:
        """Let the decisions of every rank hold on all."""


class KerasHooks(Protocol):
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

    @property
    def in_step(self) -> bool:
        """Whether a step of Keras is being traced, or run eagerly."""

    @property
    def updates_once(self) -> bool:
        """Whether the devices of this process share the variables of optimizers."""

    @property
    def are_reduced(self) -> bool:
        """Whether the gradients that come now are sums over all ranks."""

    def distribute(self, adapter: Any) -> Any:
        """Return the batches that a Keras data adapter holds, or `Shard`s of them."""

    def function_of(
        self, trainer: Any, step: Any, *, is_training: bool
    ) -> Callable[[Any], Any] | None:
        """Return what makes a step of Keras, None if Keras's own function does."""

    def predict_function_of(self, trainer: Any) -> Callable[[Any], Any] | None:
        """Return what predicts batches, None if Keras's own function does."""

    def build(self, trainer: Any, *, is_single_step: bool) -> None:
        """Start a model, just built, from equal states on all ranks."""

    def predicting(self, trainer: Any) -> AbstractContextManager[None]:
        """Mark a `predict` of a model."""

    def call_of(
        self, trainer: Any, what: str, *, is_joint: bool
    ) -> AbstractContextManager[None]:
        """Mark a call of a model's function, joint or a rank's own."""

    def complete_gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        """Fill in gradients that only other ranks have."""

    def weigh_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Weigh gradients by this rank's share of the global batch, once a step."""

    def reduce_gradients(
        self, gradients: Sequence[Any], *, is_weighed: bool = False
    ) -> list[Any]:
        """Weigh gradients, unless they are, and sum them over ranks, once a step."""

    def gradients_are_reduced(self) -> AbstractContextManager[None]:
        """Mark a block in which an optimizer gets gradients that are already sums."""

    def scale_loss_of(self, optimizer: Any) -> Any:
        """Wrap an optimizer that is to update a model in float16."""

    def metrics_result(
        self, trainer: Any, result: Callable[[Any], Any], logs: Any
    ) -> Any:
        """Call `result(logs)` with the metric states of all ranks."""

    def metrics_reset(self, trainer: Any) -> None:
        """Let all that was begun be counted: the metrics of a model are reset next."""

    def fold_seed(self, seed: Any) -> Any:
        """Make a random seed this rank's own, where ranks must differ."""

    def share(self) -> Any:
        """Return this rank's share of the step's global batch, a float64 scalar."""

    def sum_over_ranks(self, value: Any, what: str) -> Any:
        """Sum a value of the step over the ranks that have rows."""

    def note_assigned(self, variable: Any) -> None:
        """Note that a variable is assigned, if it is so in a step."""

    def fitting(self, trainer: Any, root_rank: int) -> AbstractContextManager[None]:
        """Mark a `fit` of a model; all ranks start with the variables of one."""

    def training_begins(
        self, trainer: Any, *, watches_begin: bool, watches_end: bool
    ) -> None:
        """Let the ranks agree on what callbacks decide in this `fit`."""

    def restored(self, trainer: Any, *, restores: bool) -> bool:
        """Start equal again, if a callback of any rank may have restored something."""

    def first_epoch(self, epoch: int | None) -> int | None:
        """Return the epoch in which rank 0 begins."""

    def decisions(self, trainer: Any) -> "FitDecisions | None":
        """Return what is being agreed on in the `fit` of a model, if it is in one."""


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
