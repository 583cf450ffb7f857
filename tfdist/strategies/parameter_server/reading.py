"""Steps as pieces of work whose batches the workers read for themselves."""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat.parameter_server import current_worker
from tfdist.data.sharding import rows_of
from tfdist.strategies.parameter_server.batches import as_tensors, without_missing
from tfdist.strategies.parameter_server.engine import Work
from tfdist.strategies.parameter_server.heartbeat import Heartbeat
from tfdist.strategies.parameter_server.inputs import WorkerIterator
from tfdist.strategies.parameter_server.pipelines import Part
from tfdist.strategies.parameter_server.sending import Steps
from tfdist.strategies.parameter_server.update import Update

# How long a worker without data waits before it says so, for then it is asked again.
REST_SECONDS = 0.01

_HANDLE = tf.TensorSpec([], tf.resource)


class Reading:
    """Lets workers make steps of batches that they read.

    Args:
        update: What applies what the steps leave.
        specs: The spec of a batch of each pipeline.
        steps: How many steps a worker makes in one go.
        heartbeat: What knows of workers that hang.
    """

    def __init__(
        self, update: Update, specs: list[Any], steps: int, heartbeat: Heartbeat
    ) -> None:
        self.update = update
        self._heartbeat = heartbeat
        # All is traced here: TensorFlow cannot trace on the threads of the workers.
        traced = {
            str(spec): {count: self._traced(spec, count) for count in {1, steps}}
            for spec in specs
        }
        self._writers = [traced[str(spec)] for spec in specs]

    def work_of(self, iterator: WorkerIterator, numbers: list[int], first: int) -> Work:
        """Return the work of making steps of the next batches of whoever does it.

        Which these are is decided once, when a worker begins: whoever does it again
        reads the same. Its result is the slot of each step that was made; these are
        fewer than were asked for where the data has ended.

        Args:
            iterator: The epoch.
            numbers: For each step, what tells it from others that may be under way.
            first: The number of the first step.
        """
        parts: list[Part | None] = []
        lock = threading.Lock()

        def prepare() -> Callable[[], Any]:
            worker = current_worker()
            with lock:
                if not parts:
                    silent = self._heartbeat.silent()
                    parts.append(iterator.pipelines.take(worker, len(numbers), silent))
            part = parts[0]
            if part is None:
                return _rest
            slots = [self.update.take_slot() for _ in range(part.steps)]
            return lambda: self._make(iterator, worker, part, (numbers, slots))

        return Work(
            prepare, Steps(first, len(numbers), self.update), self.update.give_back
        )

    def _make(
        self, iterator: WorkerIterator, worker: int, part: Part, step: Any
    ) -> list[list[tf.Variable]]:
        """Make steps; return the slots of those for which there was a batch."""
        slots = step[1]
        source, pipelines = iterator.source, iterator.pipelines
        with pipelines.at_work(worker):
            try:
                made = self._write(iterator, worker, part, step)
            except Exception:
                source.forget(worker, part.pipeline)
                raise
        if made < part.steps:
            pipelines.end(part, made)
            self.update.give_back(slots[made:])
        return list(slots[:made])

    def _write(
        self, iterator: WorkerIterator, worker: int, part: Part, step: Any
    ) -> int:
        """Make steps until the data ends; return how many were made."""
        numbers = np.array(step[0], np.int64)
        slots = [[variable.handle for variable in slot] for slot in step[1]]
        writers = self._writers[part.pipeline]
        # In one call, unless the data may end in its midst.
        known = iterator.pipelines.has_known_length(part.pipeline)
        count = part.steps if known and part.steps in writers else 1
        reader = iterator.source.reader(worker, part.pipeline)
        for first in range(0, part.steps, count):
            some = slice(first, first + count)
            batches = reader.at(iterator.epoch, part.first + first)
            try:
                writers[count](batches, tf.constant(numbers[some]), slots[some])
            except tf.errors.OutOfRangeError:
                return first
            reader.advance(count)
        return part.steps

    def _traced(self, spec: Any, count: int) -> Any:
        """Trace what reads batches and leaves what steps of them compute in slots."""
        step = self.update.step

        def write(iterator: Any, numbers: Any, slots: Any) -> None:
            for number, slot in zip(tf.unstack(numbers, count), slots, strict=True):
                batch = as_tensors(without_missing(next(iterator)))
                rows = rows_of(batch)
                results = step.compute(batch, tf.stack([rows, rows, number]))
                step.layout.write(results, slot)

        return tf.function(write, autograph=False).get_concrete_function(
            tf.data.IteratorSpec(spec),
            tf.TensorSpec([count], tf.int64),
            [[_HANDLE] * step.layout.size] * count,
        )


def _rest() -> list[list[tf.Variable]]:
    """Leave the next work to those who may have data, and make no step."""
    time.sleep(REST_SECONDS)
    return []
