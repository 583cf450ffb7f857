"""The function that Keras calls for each step of `fit` and `evaluate`."""

import time
from itertools import groupby, islice
from typing import Any

import tensorflow as tf

from tfdist.strategies.parameter_server.batch_codec import (
    as_tensors,
    count_rows,
    has_known_ranks,
    spec_of,
    without_missing,
)
from tfdist.strategies.parameter_server.dispatcher import Dispatcher, Work
from tfdist.strategies.parameter_server.schedule import UpdateOrder
from tfdist.strategies.parameter_server.servers import naming_lost_servers
from tfdist.strategies.parameter_server.step import PureStep
from tfdist.strategies.parameter_server.step_work import ReadSteps, sent_steps
from tfdist.strategies.parameter_server.sync_step import SyncStep
from tfdist.strategies.parameter_server.update import Update
from tfdist.strategies.parameter_server.worker_input import WorkerIterator

# The interval at which the logs of a progress bar are fetched from the servers.
_LOGS_SECONDS = 0.2
# The pieces of work in flight per worker: one that it computes, and the next.
AHEAD = 2


class Training:
    """A replacement for a Keras train or test function that dispatches steps.

    Updates are applied on the thread of `fit`, so callbacks never see partial ones.
    """

    def __init__(
        self, strategy: Any, trainer: Any, step: Any, *, is_training: bool
    ) -> None:
        self._strategy = strategy
        self._trainer = trainer
        self._is_sync = is_training and strategy.consistency == "sync"
        self._dispatcher = Dispatcher(strategy.coordinator, strategy.heartbeat)
        self._sync_step = SyncStep(strategy, self._dispatcher)
        self._order = UpdateOrder(strategy.max_staleness if is_training else None)
        self._traces = Traces(strategy, trainer, step)
        self._works: dict[int, Work] = {}
        # For worker input: work by the specs of batches, the current epoch, and the
        # number of steps that Keras has asked for.
        self._read_steps: dict[str, ReadSteps] = {}
        self._iterator: WorkerIterator | None = None
        self._wanted = 0
        # The logs that were returned last, and the update that can read newer ones.
        self.returned: dict[str, Any] = {}
        self._last: Update | None = None
        self._fetched_at = -_LOGS_SECONDS

    def __call__(self, iterator: Any) -> dict[str, Any]:
        """Dispatch the next batches; return logs, possibly of fewer steps."""
        with naming_lost_servers(self._strategy.cluster, self.abandon):
            return self._steps(iterator)

    def finish(self) -> None:
        """Wait until all steps are applied."""
        with naming_lost_servers(self._strategy.cluster, self.abandon):
            while self._begin_wanted() or self._apply_next():
                pass
        self._traces.forget_source()

    def read_logs(self) -> dict[str, Any]:
        """Return the logs of all applied steps."""
        return self.returned if self._last is None else self._last.read_logs()

    def abandon(self) -> None:
        """Drop everything in flight after an error or an interruption."""
        self._dispatcher.drop()
        self._works.clear()
        self._iterator = None
        self._order = UpdateOrder(self._order.max_staleness)

    def _steps(self, iterator: Any) -> dict[str, Any]:
        is_single = False
        if isinstance(iterator, WorkerIterator):
            self._want(iterator)
        else:
            is_single = not isinstance(iterator, tf.data.Iterator)
            self._send(iterator, 1 if is_single else self._trainer.steps_per_execution)
        if is_single or self._order.max_staleness == 0:
            # So that callbacks run between two steps.
            self.finish()
        # Before the first update there are no logs.
        while self._order.applied <= self._order.void and self._apply_next():
            pass
        now = time.monotonic()
        if is_single or self._is_sync or now >= self._fetched_at + _LOGS_SECONDS:
            self.returned = self.read_logs()
            self._fetched_at = now
        return self.returned

    def _send(self, iterator: Any, count: int) -> None:
        """Send batches to the workers."""
        batches = [as_tensors(without_missing(b)) for b in _take(iterator, count)]
        for update, alike in groupby(
            batches, lambda batch: self._traces.of_batch(iterator, batch)
        ):
            self._last = update
            if self._is_sync:
                for batch in alike:
                    self._sync_step(update, batch)
                    self._order.applied = self._order.begun = self._order.begun + 1
            else:
                self._send_alike(update, list(alike))

    def _send_alike(self, update: Update, batches: list[Any]) -> None:
        """Send batches of one spec to a worker, as soon as the schedule allows."""
        while not self._has_room(len(batches)):
            self._apply_next()
        first = self._order.begin(len(batches))
        rows = [
            [count, count, self._order.number_apart(first + i)]
            for i, count in enumerate(map(count_rows, batches))
        ]
        self._submit(sent_steps(update, batches, rows, first))

    def _want(self, iterator: WorkerIterator) -> None:
        """Let workers read and compute the next batches."""
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
        """Begin the wanted steps not in flight; return whether there were any."""
        # A step in which a worker finds no data is void, and another worker repeats it.
        has_begun = False
        while self._iterator is not None and not self._iterator.pipelines.are_over:
            most = self._trainer.steps_per_execution
            steps = min(most, self._wanted - self._order.steps)
            if steps <= 0:
                break
            if self._has_room(steps):
                self._submit_reading(self._iterator, steps)
                has_begun = True
            else:
                self._apply_next()
        return has_begun

    def _submit_reading(self, iterator: WorkerIterator, steps: int) -> None:
        """Let a worker compute its next batches."""
        specs = iterator.source.element_specs
        if str(specs) not in self._read_steps:
            update = self._traces.of(spec_of(without_missing(specs[0])))
            most = self._trainer.steps_per_execution
            read_steps = ReadSteps(update, specs, most, self._strategy.heartbeat)
            self._read_steps[str(specs)] = read_steps
        read_steps = self._read_steps[str(specs)]
        self._last = read_steps.update
        first = self._order.begin(steps)
        numbers = [self._order.number_apart(first + i) for i in range(steps)]
        self._submit(read_steps.work_of(iterator, numbers, first))

    def _has_room(self, steps: int) -> bool:
        """Return whether the next steps may be in flight, too."""
        in_flight = self._dispatcher.in_flight
        return not in_flight or (
            in_flight < AHEAD * self._strategy.workers and self._order.may_begin(steps)
        )

    def _submit(self, work: Work) -> None:
        """Submit work, and apply all that has arrived."""
        self._works[work.tag.first] = work
        self._dispatcher.submit(work)
        while self._apply_next(wait=False):
            pass

    def _apply_next(self, *, wait: bool = True) -> bool:
        """Apply the next arrival, in order; return whether there was one."""
        work = self._dispatcher.take(wait=wait)
        if work is None:
            return False
        first, steps, _ = work.tag
        for ready in self._order.arrived(first, steps, len(work.result)):
            done = self._works.pop(ready)
            update = done.tag.update
            if done.result:
                update([[slot] for slot in done.result])
            update.give_back(done.result)
        return True


class Traces:
    """The traces of a step, one for each kind of batch.

    The thread of `fit` traces, because TensorFlow cannot trace on two threads at once.
    """

    def __init__(self, strategy: Any, trainer: Any, step: Any) -> None:
        self._strategy = strategy
        self._trainer = trainer
        self._step = step
        self._updates: dict[str, Update] = {}
        # The current iterator, and the trace for all of its batches, if there is one.
        self._source: Any = None
        self._common: Update | None = None

    def of(self, spec: Any) -> Update:
        """Return the update for batches of a spec, as `spec_of` returns it."""
        kind = str(spec)
        if kind not in self._updates:
            step = PureStep(self._strategy, self._trainer, self._step, spec)
            self._updates[kind] = Update(self._strategy, step)
        return self._updates[kind]

    def of_batch(self, iterator: Any, batch: Any) -> Update:
        """Return the update for a batch, or for all batches of its iterator."""
        if iterator is not self._source:
            self._source, self._common = iterator, None
            spec = getattr(iterator, "element_spec", None)
            if spec is not None and has_known_ranks(spec):
                self._common = self.of(spec_of(without_missing(spec)))
        return self._common or self.of(spec_of(batch))

    def forget_source(self) -> None:
        """Release the current iterator."""
        self._source = self._common = None


def _take(iterator: Any, count: int) -> list[Any]:
    """Take up to `count` batches; raise `StopIteration` if there is none."""
    # A generator would turn the StopIteration into a RuntimeError.
    return [next(iterator), *islice(iterator, count - 1)]
