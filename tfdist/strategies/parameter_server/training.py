"""The function that Keras calls for each step of `fit` and `evaluate`."""

import time
from itertools import groupby, islice
from typing import Any

import tensorflow as tf

from tfdist.strategies.parameter_server.batches import (
    as_tensors,
    count_rows,
    spec_of,
    without_missing,
)
from tfdist.strategies.parameter_server.consistency import Order
from tfdist.strategies.parameter_server.engine import Engine, Work
from tfdist.strategies.parameter_server.inputs import WorkerIterator
from tfdist.strategies.parameter_server.losses import naming_lost_servers
from tfdist.strategies.parameter_server.reading import Reading
from tfdist.strategies.parameter_server.sending import work_of
from tfdist.strategies.parameter_server.together import Together
from tfdist.strategies.parameter_server.traces import Traces
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
        self._is_sync = is_training and strategy.consistency == "sync"
        self._engine = Engine(strategy.coordinator, strategy.heartbeat)
        self._together = Together(strategy, self._engine)
        self._order = Order(strategy.max_staleness if is_training else None)
        self._traces = Traces(strategy, trainer, step)
        self._works: dict[int, Work] = {}
        # What workers read for themselves: by the specs of the batches, the epoch that
        # is under way, and up to which number Keras wants its steps to be made.
        self._readings: dict[str, Reading] = {}
        self._iterator: WorkerIterator | None = None
        self._wanted = 0
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
            while self._begin_wanted() or self._apply_next():
                pass
        self._traces.forget_source()

    def _steps(self, iterator: Any) -> dict[str, Any]:
        """Set the workers to the next batches."""
        is_single = False
        if isinstance(iterator, WorkerIterator):
            self._want(iterator)
        else:
            is_single = not isinstance(iterator, tf.data.Iterator)
            self._send(iterator, 1 if is_single else self._trainer.steps_per_execution)
        if is_single or self._order.max_staleness == 0:
            # One step after the other, for callbacks too.
            self.finish()
        # Without anything applied there are no numbers yet.
        while self._order.applied <= self._order.void and self._apply_next():
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
        self._iterator = None
        self._order = Order(self._order.max_staleness)

    def _send(self, iterator: Any, count: int) -> None:
        """Send batches to the workers."""
        batches = [
            as_tensors(without_missing(batch)) for batch in _take(iterator, count)
        ]
        for update, alike in groupby(
            batches, lambda batch: self._traces.of_batch(iterator, batch)
        ):
            self._last = update
            if self._is_sync:
                for batch in alike:
                    self._together(update, batch)
                    self._order.applied = self._order.begun = self._order.begun + 1
            else:
                self._give(update, list(alike))

    def _want(self, iterator: WorkerIterator) -> None:
        """Let the workers read the next batches, and make steps of them."""
        if self._is_sync:
            raise ValueError(
                "consistency='sync' cuts each batch for all workers, so that none can "
                "read batches of its own. Received: a function that makes the dataset "
                f"of each worker, for the model {self._trainer.name!r}. Give fit the "
                "dataset itself, or use 'async' or 'bounded'."
            )
        if iterator is not self._iterator:
            self.finish()
            self._iterator, self._wanted = iterator, self._order.steps
        self._wanted += self._trainer.steps_per_execution
        if not self._begin_wanted():
            raise StopIteration

    def _begin_wanted(self) -> bool:
        """Let steps begin that Keras wants and that are not under way; say if any did.

        A worker says that it has no more data only when it is asked; another one then
        makes the step.
        """
        has_begun = False
        while self._iterator is not None and not self._iterator.pipelines.are_over:
            most = self._trainer.steps_per_execution
            steps = min(most, self._wanted - self._order.steps)
            if steps <= 0:
                break
            if self._has_room(steps):
                self._give_reading(self._iterator, steps)
                has_begun = True
            else:
                self._apply_next()
        return has_begun

    def _give_reading(self, iterator: WorkerIterator, steps: int) -> None:
        """Let a worker make steps of its next batches."""
        specs = iterator.source.element_specs
        if str(specs) not in self._readings:
            update = self._traces.of(spec_of(without_missing(specs[0])))
            most = self._trainer.steps_per_execution
            heartbeat = self._strategy.heartbeat
            self._readings[str(specs)] = Reading(update, specs, most, heartbeat)
        reading = self._readings[str(specs)]
        self._last = reading.update
        first = self._order.begin(steps)
        numbers = [self._order.number_apart(first + i) for i in range(steps)]
        self._begin(reading.work_of(iterator, numbers, first))

    def _give(self, update: Update, batches: list[Any]) -> None:
        """Give batches to a worker, as soon as one may have them."""
        while not self._has_room(len(batches)):
            self._apply_next()
        first = self._order.begin(len(batches))
        rows = [
            [count, count, self._order.number_apart(first + i)]
            for i, count in enumerate(map(count_rows, batches))
        ]
        self._begin(work_of(update, batches, rows, first))

    def _has_room(self, steps: int) -> bool:
        """Say whether a worker may be given the next steps."""
        under_way = self._engine.under_way
        return not under_way or (
            under_way < AHEAD * self._strategy.workers and self._order.may_begin(steps)
        )

    def _begin(self, work: Work) -> None:
        """Give a piece of work, and apply what has arrived meanwhile."""
        self._works[work.tag.first] = work
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
        first, steps, _ = work.tag
        for ready in self._order.arrived(first, steps, len(work.result)):
            done = self._works.pop(ready)
            update = done.tag.update
            if done.result:
                update([[slot] for slot in done.result])
            update.give_back(done.result)


def _take(iterator: Any, count: int) -> list[Any]:
    """Take up to a number of batches; none at all is the end."""
    # A generator would turn the end, a StopIteration, into an error.
    return [next(iterator), *islice(iterator, count - 1)]
