"""The program that measures the all-reduce in one process of several."""

import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import tensorflow as tf

from tfdist.benchmarks.program import run_program
from tfdist.benchmarks.turns import Turn
from tfdist.cluster import detect
from tfdist.collectives import Collective, TensorFlowCollective

_FLOAT_BYTES = 4
_WARM_UP_CALLS = 3
# The baseline must not meet the groups and keys of the collective.
_BASELINE_GROUP = 1_000_000
_BASELINE_KEY = 1


def measure(
    turn: Turn, *, sizes_bytes: list[int], repeats: int
) -> list[dict[str, list[float]]]:
    """Time all-reduces of tensors of several sizes, and those of a baseline.

    The baseline is TensorFlow's own ring on the tensor as a whole, one
    `CollectiveReduceV2` op. The two alternate, call by call.

    Args:
        turn: When this process may work.
        sizes_bytes: The sizes of the tensors.
        repeats: Timed calls for each size.

    Returns:
        For each size the seconds of each call: "tfdist", and "single_ring".
    """
    collective = TensorFlowCollective(detect())
    turn.take()
    times = [_measure_size(collective, size, repeats) for size in sizes_bytes]
    turn.pass_on()
    return times


def _measure_size(
    collective: Collective, size_bytes: int, repeats: int
) -> dict[str, list[float]]:
    """Time both ways for one size, in alternation."""
    tensor = tf.random.stateless_normal([size_bytes // _FLOAT_BYTES], [0, 0])
    ways: dict[str, Callable[[Any], Any]] = {
        "tfdist": tf.function(
            lambda flat: collective.all_reduce([flat], name="benchmark")[0]
        ),
        "single_ring": tf.function(lambda flat: _single_ring(flat, collective.size)),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(_WARM_UP_CALLS + repeats):
        for name, way in ways.items():
            start = perf_counter()
            with collective.call("an all-reduce of the benchmark"):
                way(tensor)
            times[name].append(perf_counter() - start)
    return {name: seconds[_WARM_UP_CALLS:] for name, seconds in times.items()}


def _single_ring(flat: Any, size: int) -> Any:
    """Sum a tensor over all processes, by one op."""
    return tf.raw_ops.CollectiveReduceV2(
        input=flat,
        group_size=size,
        group_key=_BASELINE_GROUP,
        # TensorFlow binds a key to one shape.
        instance_key=_BASELINE_KEY + flat.shape.num_elements(),
        ordering_token=[],
        merge_op="Add",
        final_op="Id",
    )


if __name__ == "__main__":
    run_program(measure, sys.argv[1:])
