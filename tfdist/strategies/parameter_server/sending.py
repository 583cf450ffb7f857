"""Steps as pieces of work: sent to a worker, with slots to leave the results in."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdist.strategies.parameter_server.batches import are_small
from tfdist.strategies.parameter_server.engine import Work
from tfdist.strategies.parameter_server.update import Update


class Steps(NamedTuple):
    """What a piece of work stands for.

    Args:
        first: The number of the first of its steps.
        steps: How many they are.
        update: What applies what they leave.
    """

    first: int
    steps: int
    update: Update


def work_of(
    update: Update, batches: list[Any], rows: list[list[int]], first: int
) -> Work:
    """Return the work of making steps, one after the other.

    Its result is the slot of each step, in which its results lie.

    Args:
        update: What applies what the steps leave.
        batches: The batch of each step.
        rows: The rows of each step, see `PureStep.compute`.
        first: The number of the first step.
    """
    count = len(batches)
    writer = update.step.writer(count, is_packed=are_small(batches))
    rows_of_all = [np.array(row, np.int64) for row in rows]
    packed, beside = writer.parcel.pack(list(zip(batches, rows_of_all, strict=True)))

    # The batches themselves need not be there as long as the work is.
    def prepare() -> Callable[[], Any]:
        slots = [update.take_slot() for _ in range(count)]
        handles = [[variable.handle for variable in slot] for slot in slots]

        def call() -> list[list[tf.Variable]]:
            writer.write(packed, beside, handles)
            return slots

        return call

    # Slots of a worker that is lost in the midst of it are never used again.
    return Work(prepare, Steps(first, count, update), update.give_back)
