"""The function that Keras calls for each step of `fit` and `evaluate`."""

import threading
import time
from collections.abc import Callable
from itertools import groupby, islice, pairwise, takewhile
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat.keras.input import spec_of
from tfdist.compat.keras.trainer import build
from tfdist.compat.parameter_server import current_worker
from tfdist.data.sharding import count_rows, cut_rows
from tfdist.strategies.parameter_server.batch_codec import (
    are_small,
    as_tensors,
    has_known_ranks,
    without_missing,
)
from tfdist.strategies.parameter_server.dispatcher import AHEAD, Heartbeat, Work
from tfdist.strategies.parameter_server.job import ServerJob
from tfdist.strategies.parameter_server.step import PureStep
from tfdist.strategies.parameter_server.update import Update
from tfdist.strategies.parameter_server.worker_input import BatchRange, WorkerIterator

# The interval at which the logs of a progress bar are fetched from the servers.
_LOGS_SECONDS = 0.2
# The pause of a worker without data, which is then asked again.
REST_SECONDS = 0.01


class Training:
    """A replacement for a Keras train or test function that dispatches steps.

    Updates are applied on the thread of `fit`, so callbacks never see partial ones. It
    also traces, because TensorFlow cannot trace on two threads at once.
    """

    def __init__(
        self, job: ServerJob, trainer: Any, step: Any, *, is_training: bool
    ) -> None:
        self._job = job
        self._trainer = trainer
        self._step = step
        self._is_sync = is_training and job.is_sync
        self._dispatcher = job.dispatcher(job.backup_workers if self._is_sync else 0)
        self._updates: dict[str, Update] = {}
        # The current iterator, and the update for all of its batches, if there is one.
        self._source: Any = None
        self._common: Update | None = None
        # The number of updates that a gradient may miss; None sets no limit, and
        # updates are applied as they arrive.
        self._max_staleness = job.max_staleness if is_training else None
        # The number of steps and the update of each work in flight, in order.
        self._works: dict[Work, tuple[int, Update]] = {}
        # The numbers of steps. Those without a batch are void, and also applied.
        self._begun = self._applied = self._void = 0
        # The number of updates until the last time that all steps were applied.
        self._finished = 0
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
        with self._job.naming_lost_servers(self.abandon):
            return self._steps(iterator)

    def finish(self) -> None:
        """Wait until all steps are applied."""
        with self._job.naming_lost_servers(self.abandon):
            while self._begin_wanted() or self._apply_next():
                pass
        self._source = self._common = None
        self._finished = self._applied - self._void
        self._fetched_at = -_LOGS_SECONDS

    def read_logs(self) -> dict[str, Any]:
        """Return the logs of all applied steps."""
        return self.returned if self._last is None else self._last.read_logs()

    def abandon(self) -> None:
        """Drop everything in flight after an error or an interruption."""
        self._dispatcher.drop()
        self._works.clear()
        self._begun = self._applied = self._void = self._finished = 0
        self._iterator = None

    def _steps(self, iterator: Any) -> dict[str, Any]:
        is_single = not isinstance(iterator, WorkerIterator | tf.data.Iterator)
        if isinstance(iterator, WorkerIterator):
            self._want(iterator)
        else:
            self._send(iterator, 1 if is_single else self._trainer.steps_per_execution)
        if is_single or self._max_staleness == 0:
            # So that callbacks run between two steps.
            self.finish()
        # Before the first update of an epoch there are no logs.
        while self._applied - self._void <= self._finished and self._apply_next():
            pass
        now = time.monotonic()
        is_in_turn = is_single or self._is_sync or self._max_staleness == 0
        if is_in_turn or now >= self._fetched_at + _LOGS_SECONDS:
            self.returned = self.read_logs()
            self._fetched_at = now
        return self.returned

    def _send(self, iterator: Any, count: int) -> None:
        """Send up to `count` batches to the workers."""
        taken: list[Any] = []
        failure: Exception | None = None
        try:
            taken.append(next(iterator))
            taken.extend(islice(iterator, count - 1))
        except StopIteration:
            raise
        except Exception as error:
            failure = error
        batches = [as_tensors(without_missing(batch)) for batch in taken]
        for update, alike in groupby(
            batches, lambda batch: self._update_of_batch(iterator, batch)
        ):
            self._last = update
            if self._is_sync:
                for batch in alike:
                    self._send_slices(update, batch)
            else:
                self._send_alike(update, list(alike))
        if failure is not None:
            # As on one process, the batches before are trained.
            self.finish()
            raise failure

    def _send_slices(self, update: Update, batch: Any) -> None:
        """Split a batch among the workers, and apply one update."""
        rows = int(count_rows(batch, is_cut=True)[0])
        # A batch without rows is one slice, and counts as one row.
        count = min(self._job.workers - self._job.backup_workers, rows or 1)
        edges = [rows * i // count for i in range(count + 1)]
        works = [
            sent_steps(
                update, [cut_rows(batch, a, b)], [[b - a or 1, rows or 1, number]]
            )
            for number, (a, b) in enumerate(pairwise(edges))
        ]
        self._dispatcher.submit(*works)
        while self._dispatcher.take(wait=True) is not None:
            pass
        update([[work.result[0] for work in works]])
        for work in works:
            update.give_back(work.result)
        self._begun += 1
        self._applied += 1

    def _send_alike(self, update: Update, batches: list[Any]) -> None:
        """Send batches of one spec to a worker, as soon as the consistency allows."""
        while not self._has_room(len(batches)):
            self._apply_next()
        numbers = self._begin(len(batches))
        counts = [int(count_rows(batch)[0]) for batch in batches]
        rows = [[n, n, i] for n, i in zip(counts, numbers, strict=True)]
        self._submit(sent_steps(update, batches, rows), len(batches), update)

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
            self._iterator, self._wanted = iterator, self._begun - self._void
        self._wanted += self._trainer.steps_per_execution
        if not self._begin_wanted():
            raise StopIteration

    def _begin_wanted(self) -> bool:
        """Begin the wanted steps not in flight; return whether there were any."""
        # A step in which a worker finds no data is void, and another worker repeats it.
        has_begun = False
        while self._iterator is not None and not self._iterator.pipelines.are_over:
            left = self._wanted - self._begun + self._void
            steps = min(self._trainer.steps_per_execution, left)
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
            update = self._update_of(spec_of(without_missing(specs[0])))
            most = self._trainer.steps_per_execution
            read_steps = ReadSteps(update, specs, most, self._job.heartbeat)
            self._read_steps[str(specs)] = read_steps
        read_steps = self._read_steps[str(specs)]
        self._last = read_steps.update
        work = read_steps.work_of(iterator, self._begin(steps))
        self._submit(work, steps, read_steps.update)

    def _has_room(self, steps: int) -> bool:
        """Return whether the next steps may be in flight, too."""
        in_flight = self._dispatcher.in_flight
        missed, most = self._begun + steps - 1 - self._applied, self._max_staleness
        return not in_flight or (
            in_flight < AHEAD * self._job.workers and (most is None or missed <= most)
        )

    def _begin(self, steps: int) -> list[int]:
        """Begin the next steps; return numbers that differ among concurrent steps."""
        first, self._begun = self._begun, self._begun + steps
        is_alone = self._max_staleness == 0
        return [0] * steps if is_alone else list(range(first, self._begun))

    def _submit(self, work: Work, steps: int, update: Update) -> None:
        """Submit work, and apply all that has arrived."""
        self._works[work] = (steps, update)
        self._dispatcher.submit(work)
        while self._apply_next(wait=False):
            pass

    def _apply_next(self, *, wait: bool = True) -> bool:
        """Apply the next arrival, in order; return whether there was one."""
        work = self._dispatcher.take(wait=wait)
        if work is None:
            return False
        self._void += self._works[work][0] - len(work.result)
        ready = [work]
        if self._max_staleness is not None:
            ready = list(takewhile(lambda each: each.has_arrived, self._works))
        for done in ready:
            steps, update = self._works.pop(done)
            self._applied += steps
            if done.result:
                update([[slot] for slot in done.result])
            update.give_back(done.result)
        return True

    def _update_of_batch(self, iterator: Any, batch: Any) -> Update:
        """Return the update for a batch, or for all batches of its iterator."""
        if iterator is not self._source:
            self._source, self._common = iterator, None
            spec = getattr(iterator, "element_spec", None)
            if spec is not None and has_known_ranks(spec):
                self._common = self._update_of(spec_of(without_missing(spec)))
        return self._common or self._update_of(spec_of(batch))

    def _update_of(self, spec: Any) -> Update:
        """Return the update for batches of a spec, as `spec_of` returns it."""
        kind = str(spec)
        if kind not in self._updates:
            # A callback may have compiled the model, whose new metrics need servers.
            build(self._trainer, spec)
            step = PureStep(self._job, self._trainer, self._step, spec)
            self._updates[kind] = Update(self._job, step)
        return self._updates[kind]


def sent_steps(update: Update, batches: list[Any], rows: list[list[int]]) -> Work:
    """Return the work of computing batches in sequence, whose result is their slots.

    For `rows` see `PureStep.compute`.
    """
    count = len(batches)
    writer = update.step.writer(count, is_packed=are_small(batches))
    arrays = [np.array(row, np.int64) for row in rows]
    payload, separate = writer.codec.encode(list(zip(batches, arrays, strict=True)))

    # Refers to the payload only, so that the batches can be freed.
    def prepare() -> Callable[[], Any]:
        slots = [update.take_slot() for _ in range(count)]

        def call() -> list[list[tf.Variable]]:
            writer.write(payload, separate, _handles(slots))
            return slots

        return call

    # The slots of a worker that was lost during its attempt are never used again.
    return Work(prepare, update.give_back)


class ReadSteps:
    """A source of work whose batches the workers read themselves.

    `specs` has the spec of a batch of each pipeline; `steps` is the number of steps per
    piece of work.
    """

    def __init__(
        self, update: Update, specs: list[Any], steps: int, heartbeat: Heartbeat
    ) -> None:
        self.update = update
        self._heartbeat = heartbeat
        # Traced here, because TensorFlow cannot trace on the threads of the workers.
        trace = update.step.reading_writer
        traced = {
            str(spec): {count: trace(spec, count) for count in {1, steps}}
            for spec in specs
        }
        self._writers = [traced[str(spec)] for spec in specs]

    def work_of(self, iterator: WorkerIterator, numbers: list[int]) -> Work:
        """Return the work of computing the next batches of the worker that begins it.

        Each attempt reads the same batches. The result is the slots of the steps that
        were computed, fewer at the end of the data. `numbers` differ among concurrent
        steps.
        """
        chosen: list[BatchRange | None] = []
        lock = threading.Lock()
        epoch = iterator.epoch

        def prepare() -> Callable[[], Any]:
            worker = current_worker()
            with lock:
                if not chosen:
                    absent = self._heartbeat.silent()
                    batches = iterator.pipelines.take(worker, len(numbers), absent)
                    chosen.append(batches)
            batches = chosen[0]
            if batches is None:
                return _rest
            slots = [self.update.take_slot() for _ in range(batches.steps)]
            return lambda: self._compute(
                iterator, epoch, worker, batches, numbers, slots
            )

        return Work(prepare, self.update.give_back)

    def _compute(
        self,
        iterator: WorkerIterator,
        epoch: int,
        worker: int,
        batches: BatchRange,
        numbers: list[int],
        slots: list[Any],
    ) -> list[list[tf.Variable]]:
        """Compute batches; return the slots of those that existed."""
        reader = iterator.source.reader(worker, batches.pipeline)
        writers = self._writers[batches.pipeline]
        # In one call, unless the data may end within it.
        is_known = iterator.pipelines.has_known_length(batches.pipeline)
        count = batches.steps if is_known and batches.steps in writers else 1
        made = 0
        try:
            while made < batches.steps:
                some = slice(made, made + count)
                data = reader.at(epoch, batches.first + made)
                of_steps = tf.constant(numbers[some], tf.int64)
                writers[count](data, of_steps, _handles(slots[some]))
                reader.advance(count)
                made += count
        except tf.errors.OutOfRangeError:
            pass
        except Exception:
            iterator.source.forget(worker, batches.pipeline)
            raise
        if made < batches.steps:
            iterator.pipelines.end(batches.pipeline)
            self.update.give_back(slots[made:])
        return slots[:made]


def _handles(slots: list[Any]) -> list[list[tf.Tensor]]:
    return [[variable.handle for variable in slot] for slot in slots]


def _rest() -> list[list[tf.Variable]]:
    """Compute nothing, and leave the next work to workers that may have data."""
    time.sleep(REST_SECONDS)
    return []
