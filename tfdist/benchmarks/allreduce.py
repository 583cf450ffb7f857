"""The program that measures the all-reduce in one process of several."""

import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.benchmarks.calls import Ways, time_sizes
from tfdist.benchmarks.program import run_program
from tfdist.benchmarks.turns import Turn
from tfdist.cluster import detect
from tfdist.collectives import Collective, TensorFlowCollective

_FLOAT_BYTES = 4
# The baseline must not meet the groups and keys of the collective.
_BASELINE_GROUP = 1_000_000
_BASELINE_KEY = 1
_CALL = "an all-reduce of the benchmark"


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

    def make_ways(size_bytes: int) -> Ways:
        tensor = make_tensor(size_bytes)
        ring = tf.function(lambda flat: _single_ring(flat, collective.size))

        def reduce_by_ring() -> None:
            with collective.call(_CALL):
                ring(tensor)

        return {
            "tfdist": reducer_of(collective, tensor),
            "single_ring": reduce_by_ring,
        }

    return time_sizes(turn, sizes_bytes, repeats, make_ways)


def make_tensor(size_bytes: int) -> Any:
    """Make a tensor of float32 numbers.

    Args:
        size_bytes: Its size, a multiple of 4.
    """
    return tf.random.stateless_normal([size_bytes // _FLOAT_BYTES], [0, 0])


def reducer_of(collective: Collective, tensor: Any) -> Callable[[], None]:
    """Return a function that reduces a tensor as a strategy does, inside of a graph.

    Args:
        collective: What reduces it.
        tensor: What is summed over all ranks, again in each call.
    """
    name = f"benchmark of {tensor.shape}"
    reduce = tf.function(lambda flat: collective.all_reduce([flat], name=name)[0])

    def reduce_now() -> None:
        with collective.call(_CALL):
            reduce(tensor)

    return reduce_now


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
