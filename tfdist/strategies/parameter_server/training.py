"""The function that Keras calls for each step of `fit` and `evaluate`."""

import time
from itertools import groupby, islice
from typing import Any

import keras
import tensorflow as tf

from tfdist.data.sharding import rows_of
from tfdist.strategies.parameter_server.batches import as_tensors, spec_of
from tfdist.strategies.parameter_server.consistency import Order
from tfdist.strategies.parameter_server.engine import Engine, Work
from tfdist.strategies.parameter_server.losses import naming_lost_servers
from tfdist.strategies.parameter_server.sending import give_back, work_of
from tfdist.strategies.parameter_server.step import PureStep
from tfdist.strategies.parameter_server.together import Together
from tfdist.strategies.parameter_server.update import Update

# How often the numbers of a progress bar are fetched from the servers.
_LOGS_SECONDS = 0.2
# How many pieces of work there are for each worker: one that it does, and the next.
AHEAD = 2


class Training:
    """Gives steps to the workers, and lets the servers apply them.

    All is applied on the thread of `fit`, so that callbacks see whole updates.

    Args:
        strategy: The strategy.
        trainer: The model.
        step: Its `train_step` or `test_step`, as Keras calls it.
        is_training: Whether it is the `train_step`.
    """

    def __init__(
        self, strategy: Any, trainer: Any, step: Any, *, is_training: bool
    ) -> None:
        self._strategy = strategy
        self._trainer = trainer
        self._function = step
        self._is_sync = is_training and strategy.consistency == "sync"
        self._engine = Engine(strategy.coordinator, strategy.heartbeat)
        self._together = Together(strategy, self._engine)
        self._order = Order(strategy.max_staleness if is_training else None)
        self._updates: dict[Any, Update] = {}
        self._works: dict[int, Work] = {}
        # What was returned last, and what was traced for the steps that it is of.
        self.returned: dict[str, Any] = {}
        self._last: Update | None = None
        self._fetched_at = -_LOGS_SECONDS

    def __call__(self, iterator: Any) -> dict[str, Any]:
        """Take batches from an iterator, and set the workers to them.

        Args:
            iterator: Of batches.

        Returns:
            The numbers of the steps so far, by name, as far as they are known.

        Raises:
            StopIteration: If there is no batch left.
        """
        with naming_lost_servers(self._strategy.cluster, self.abandon):
            return self._steps(iterator)

    def finish(self) -> None:
        """Wait until everything that was begun is applied."""
        with naming_lost_servers(self._strategy.cluster, self.abandon):
            while self._apply_next():
                pass

    def _steps(self, iterator: Any) -> dict[str, Any]:
        """Set the workers to the next batches."""
        is_single = not isinstance(iterator, tf.data.Iterator)
        count = 1 if is_single else self._trainer.steps_per_execution
        batches = [
            as_tensors(_without_missing(batch)) for batch in _take(iterator, count)
        ]
        for update, alike in groupby(batches, self._update_of):
            self._last = update
            if self._is_sync:
                for batch in alike:
                    self._together(update, batch)
                    self._order.applied = self._order.begun = self._order.begun + 1
            else:
                self._give(update, list(alike))
        if self._order.max_staleness == 0:
            # One step after the other, for callbacks too.
            self.finish()
        if is_single:
            self.finish()
        # Without anything applied there are no numbers yet.
        while self._order.applied == 0 and self._apply_next():
            pass
        now = time.monotonic()
        if is_single or self._is_sync or now >= self._fetched_at + _LOGS_SECONDS:
            self.returned = self.read_logs()
            self._fetched_at = now
        return self.returned

    def read_logs(self) -> dict[str, Any]:
        """Return the numbers of all steps so far, by name."""
        return self.returned if self._last is None else self._last.read_logs()

    def abandon(self) -> None:
        """Forget what an error or an interruption has left under way."""
        self._engine.drop()
        self._works.clear()
        self._order = Order(self._order.max_staleness)

    def _update_of(self, batch: Any) -> Update:
        """Return what steps of batches like this need, traced here.

        TensorFlow cannot trace on two threads at once.
        """
        spec = spec_of(batch)
        if str(spec) not in self._updates:
            step = PureStep(self._strategy, self._trainer, self._function, spec)
            self._updates[str(spec)] = Update(self._strategy, step)
        return self._updates[str(spec)]

    def _give(self, update: Update, batches: list[Any]) -> None:
        """Give batches to a worker, as soon as one may have them."""
        limit = AHEAD * self._strategy.workers
        while self._engine.under_way and not (
            self._engine.under_way < limit and self._order.may_begin(len(batches))
        ):
            self._apply_next()
        first = self._order.begin(len(batches))
        rows = [
            [count, count, self._order.number_apart(first + i)]
            for i, count in enumerate(int(rows_of(batch)) for batch in batches)
        ]
        work = work_of(update, batches, rows, first)
        self._works[first] = work
        self._engine.give(work)
        while (arrived := self._engine.take(wait=False)) is not None:
            self._apply(arrived)

    def _apply_next(self) -> bool:
        """Wait for something to arrive and apply what can be; False if all is done."""
        work = self._engine.take(wait=True)
        if work is None:
            return False
        self._apply(work)
        return True

    def _apply(self, work: Work) -> None:
        """Apply what has arrived, and what has waited for it."""
        for ready in self._order.arrived(work.tag.first, work.tag.steps):
            done = self._works.pop(ready)
            update = done.tag.update
            update([[slot] for slot in done.result])
            give_back(update, done)


def _without_missing(batch: Any) -> Any:
    """Return a batch without the parts of (x, y, sample_weight) that are not there."""
    return keras.utils.pack_x_y_sample_weight(
        *keras.utils.unpack_x_y_sample_weight(batch)
    )


def _take(iterator: Any, count: int) -> list[Any]:
    """Take up to a number of batches; none at all is the end."""
    # A generator would turn the end, a StopIteration, into an error.
    return [next(iterator), *islice(iterator, count - 1)]
