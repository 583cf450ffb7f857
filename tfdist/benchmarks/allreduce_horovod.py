"""The program that measures Horovod's all-reduce, through tfdist and without it."""

import sys

import horovod.tensorflow as hvd
import tensorflow as tf

from tfdist.benchmarks.allreduce import make_tensor, reducer_of
from tfdist.benchmarks.calls import Ways, time_sizes
from tfdist.benchmarks.program import run_program
from tfdist.benchmarks.turns import Turn
from tfdist.collectives.horovod.collective import HorovodCollective


def measure(
    turn: Turn, *, sizes_bytes: list[int], repeats: int
) -> list[dict[str, list[float]]]:
    """Time all-reduces of tensors of several sizes, and those of Horovod's own users.

    These call `hvd.allreduce`, in a `tf.function` or eagerly. The three alternate,
    call by call.

    Args:
        turn: When this process may work.
        sizes_bytes: The sizes of the tensors.
        repeats: Timed calls for each size.

    Returns:
        For each size the seconds of each call: "tfdist", "graph" and "eager".
    """
    collective = HorovodCollective()

    def make_ways(size_bytes: int) -> Ways:
        tensor = make_tensor(size_bytes)
        graph = tf.function(
            lambda flat: hvd.allreduce(flat, op=hvd.Sum, name=f"graph.{size_bytes}")
        )
        return {
            "tfdist": reducer_of(collective, tensor),
            "graph": lambda: graph(tensor),
            "eager": lambda: hvd.allreduce(
                tensor, op=hvd.Sum, name=f"eager.{size_bytes}"
            ),
        }

    return time_sizes(turn, sizes_bytes, repeats, make_ways)


if __name__ == "__main__":
    run_program(measure, sys.argv[1:])
