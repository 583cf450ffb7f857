"""The all-reduce of `HorovodStrategy` and of torch on Gloo; pip install torch first."""

from importlib.util import find_spec

from script import is_program, run_script

from tfdist.benchmarks import parse_size
from tfdist.benchmarks.allreduce import allreduce_figures, allreduce_group
from tfdist.benchmarks.processes import Group, check_at_least, run_program, start
from tfdist.benchmarks.timers import time_sizes
from tfdist.cluster import detect
from tfdist_cli.bench import allreduce_table

_SIZES = "1KiB,64KiB,1MiB,8MiB,32MiB"
_FLOAT_BYTES = 4


def measure(turn, *, sizes_bytes, repeats):
    """Return the seconds of each all-reduce of torch, for each size."""
    import torch
    from torch import distributed

    cluster = detect()
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{cluster.addresses[0]}",
        rank=cluster.rank,
        world_size=cluster.size,
    )

    def make(size_bytes):
        # The sum overwrites the tensor; zeros never overflow.
        tensor = torch.zeros(size_bytes // _FLOAT_BYTES)
        return {"torch": lambda: distributed.all_reduce(tensor)}

    times = time_sizes(turn, sizes_bytes, repeats, make)
    distributed.destroy_process_group()
    return times


def measure_all(args):
    """Measure both in processes that take turns."""
    if find_spec("torch") is None:
        raise ImportError(
            "This benchmark needs torch. Received: an environment without it. "
            "Run: pip install torch"
        )
    check_at_least(2, np=args.np)
    check_at_least(1, repeats=args.repeats)
    sizes = [parse_size(size) for size in args.sizes.split(",")]
    settings = {"sizes_bytes": sizes, "repeats": args.repeats}
    env = {"GLOO_SOCKET_IFNAME": "lo"}
    groups = [
        allreduce_group(args.np, sizes, args.repeats, "horovod"),
        Group("torch", __file__, settings, args.np, env=env),
    ]
    figures = []
    for size, horovod, torch in zip(
        sizes, *(zip(*ranks, strict=True) for ranks in start(groups)), strict=True
    ):
        by_rank = [
            {"tfdist": ours["tfdist"], **its}
            for ours, its in zip(horovod, torch, strict=True)
        ]
        figures.append(allreduce_figures(size, by_rank))
    return figures, allreduce_table(figures)


if __name__ == "__main__":
    if is_program():
        run_program(measure)
    else:
        options = [
            ("-np", 2, "how many processes"),
            ("--sizes", _SIZES, "sizes of the tensors"),
            ("--repeats", 30, "timed calls for each size"),
        ]
        run_script(__doc__, options, measure_all)
