"""What a strategy of several processes does inside of Keras."""

import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import tensorflow as tf

from tfdist.cluster.detect import LateTFConfig
from tfdist.collectives import Collective
from tfdist.collectives.base import check_root_rank
from tfdist.compat.keras.caveats import caveats
from tfdist.gradients import GradientReducer
from tfdist.mixed_precision import LossScaleOptimizer
from tfdist.training.checks import check_built
from tfdist.training.decisions import Decisions
from tfdist.training.input import Feed
from tfdist.training.state import average_state, start_equal
from tfdist.training.step import state_of_layers
from tfdist.training.step_hooks import StepHooks


class StrategyKerasHooks(StepHooks):
    """The answers to `tfdist.compat.keras.KerasHooks`.

    Args:
        collective: How the processes talk.
        reducer: How gradients travel.
    """

    def __init__(self, collective: Collective, reducer: GradientReducer) -> None:
        super().__init__(collective, reducer)
        self._feed = Feed(collective)
        self._late_tf_config = LateTFConfig()
        self._started: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        # The rank from which a `fit` starts, until it has started.
        self._root_ranks: weakref.WeakKeyDictionary[Any, int] = (
            weakref.WeakKeyDictionary()
        )
        self._fits: weakref.WeakKeyDictionary[Any, Decisions | None] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def rank(self) -> int:
        """The number of this process."""
        return self._collective.rank

    @property
    def is_alone(self) -> bool:
        """Whether there is no other process."""
        return self._collective.size == 1

    @property
    def has_peers(self) -> bool:
        """Whether other processes run the same calls of Keras, on their own rows."""
        return not self.is_alone

    def distribute(self, adapter: Any) -> tf.data.Dataset:
        """Return this rank's `Shard`s of what a Keras data adapter holds."""
        return self._feed.distribute(adapter)

    def function_of(self, trainer: Any, step: Any, *, is_training: bool) -> None:
        """Let Keras's own function make the steps, on this rank's rows."""

    def predict_function_of(self, trainer: Any) -> None:
        """Let Keras's own function predict, from this rank's rows."""

    def build(self, trainer: Any, *, is_single_step: bool) -> None:
        """Start a model from equal states; for single steps only the first time."""
        start = trainer.optimizer or trainer
        started = self._started.get(trainer, lambda: None)()
        if is_single_step and started is start:
            return
        if trainer not in self._started and self.rank == 0:
            for caveat in caveats(trainer):
                warnings.warn(f"{caveat} See docs/guarantees.md.", stacklevel=2)
        self._started[trainer] = weakref.ref(start)
        self.synchronize(trainer)

    def synchronize(self, trainer: Any) -> None:
        """Give all ranks the variables of the rank that a `fit` is to start from."""
        root_rank = self._root_ranks.pop(trainer, 0)
        start_equal(trainer, self._collective, root_rank)

    @contextmanager
    def predicting(self, trainer: Any) -> Iterator[None]:
        """Mark a `predict` of a model, which all ranks begin with equal variables."""
        check_built(trainer)
        self.synchronize(trainer)
        yield

    @contextmanager
    def call_of(self, trainer: Any, what: str, *, is_joint: bool) -> Iterator[None]:
        """Mark a call of a model's function, joint or a rank's own."""
        before, self._call = self._call, (trainer, is_joint)
        try:
            with self.joint_call(what) if is_joint else nullcontext():
                yield
            if is_joint:
                self.created.start_late_equal()
        finally:
            self._call = before

    @contextmanager
    def joint_call(self, what: str) -> Iterator[None]:
        """Mark a call that all ranks make together."""
        with self._collective.call(what):
            try:
                yield
            except tf.errors.OpError:
                if self._feed.error is not None:
                    raise self._feed.error from None
                raise

    def scale_loss_of(self, optimizer: Any) -> Any:
        """Wrap an optimizer that is to update a model in float16."""
        return LossScaleOptimizer(optimizer, name="loss_scale_optimizer")

    def metrics_result(
        self, trainer: Any, result: Callable[[Any], Any], logs: Any
    ) -> Any:
        """Call `result(logs)` with the metric states of all ranks."""
        if variables := state_of_layers(trainer):
            mine = sorted(self._apart.get(trainer, ()))
            by_rank = self._collective.exchange("state that differs", mine)
            apart = sorted({i for positions in by_rank for i in positions})
            if apart:
                average_state([variables[i] for i in apart], self._collective)
        return self._metrics.result(trainer, result, logs)

    def metrics_reset(self, trainer: Any) -> None:
        """Let all that was begun be counted: nothing is under way between steps."""

    @contextmanager
    def fitting(self, trainer: Any, root_rank: int) -> Iterator[None]:
        """Mark a `fit` of a model, which all ranks make together."""
        if warning := self._late_tf_config.warning():
            warnings.warn(warning, stacklevel=2)
        check_root_rank(root_rank, self._collective.size)
        self._root_ranks[trainer] = root_rank
        self._fits[trainer] = None
        try:
            yield
        finally:
            self._fits.pop(trainer, None)
            self._root_ranks.pop(trainer, None)

    def training_begins(
        self, trainer: Any, *, watches_begin: bool, watches_end: bool
    ) -> None:
        """Let the ranks agree on what callbacks decide in this `fit`."""
        if trainer in self._fits:
            self._fits[trainer] = Decisions(
                trainer,
                self._collective,
                watches_begin=watches_begin,
                watches_end=watches_end,
            )

    def restored(self, trainer: Any, *, restores: bool) -> bool:
        """Start equal again, if a callback of any rank may have restored something."""
        if trainer not in self._fits:
            return False
        if not any(self._collective.exchange("callbacks that restore", restores)):
            return False
        self.synchronize(trainer)
        return True

    def first_epoch(self, epoch: int | None) -> int | None:
        """Return the epoch in which rank 0 begins."""
        first: int | None = self._collective.exchange("the first epoch", epoch)[0]
        return first

    def decisions(self, trainer: Any) -> Decisions | None:
        """Return what is being agreed on in the `fit` of a model, if it is in one."""
        return self._fits.get(trainer)
