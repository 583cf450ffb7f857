"""The program that measures the all-reduce of torch with Gloo in one process."""

import sys

import torch
from torch import distributed

from tfdist.benchmarks.calls import Ways, time_sizes
from tfdist.benchmarks.program import run_program
from tfdist.benchmarks.turns import Turn
from tfdist.cluster import detect

_FLOAT_BYTES = 4


def measure(
    turn: Turn, *, sizes_bytes: list[int], repeats: int
) -> list[dict[str, list[float]]]:
    """Time all-reduces of tensors of several sizes.

    Args:
        turn: When this process may work.
        sizes_bytes: The sizes of the tensors.
        repeats: Timed calls for each size.

    Returns:
        For each size the seconds of each call: "torch".
    """
    cluster = detect()
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{cluster.addresses[0]}",
        rank=cluster.rank,
        world_size=cluster.size,
    )

    def make_ways(size_bytes: int) -> Ways:
        # The sum takes the place of the tensor: of zeros it is always the same.
        tensor = torch.zeros(size_bytes // _FLOAT_BYTES)
        return {"torch": lambda: distributed.all_reduce(tensor)}

    times = time_sizes(turn, sizes_bytes, repeats, make_ways)
    distributed.destroy_process_group()
    return times


if __name__ == "__main__":
    run_program(measure, sys.argv[1:])
