"""Steps as work for the dispatcher: on batches sent by the chief or read by workers."""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat.parameter_server import current_worker
from tfdist.strategies.parameter_server.batch_codec import are_small
from tfdist.strategies.parameter_server.dispatcher import Heartbeat, Work
from tfdist.strategies.parameter_server.pipelines import BatchRange
from tfdist.strategies.parameter_server.update import Update
from tfdist.strategies.parameter_server.worker_input import WorkerIterator

# The pause of a worker without data, which is then asked again.
REST_SECONDS = 0.01


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
            return lambda: self._compute(iterator, worker, batches, numbers, slots)

        return Work(prepare, self.update.give_back)

    def _compute(
        self,
        iterator: WorkerIterator,
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
                data = reader.at(iterator.epoch, batches.first + made)
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
