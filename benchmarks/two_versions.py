"""Training steps of this checkout of tfdist beside another one.

Two jobs train the network of `training.py` in turns, each with the tfdist of
its folder. `git worktree add ../before COMMIT` makes one to compare with.
"""

from dataclasses import replace
from pathlib import Path

from script import run_script
from timers import seconds_by_round
from training import training_group

from tfdist.benchmarks.figures import medians, ratio
from tfdist.benchmarks.processes import start
from tfdist_cli.table import format_spread, format_table

HERE = Path(__file__).parents[1]


def measure(args):
    """Measure both versions."""
    if not (Path(args.other) / "tfdist" / "__init__.py").is_file():
        raise ValueError(
            "--other must be the folder of a checkout of tfdist. Received: "
            f"--other {args.other}. Make one with `git worktree add ../before COMMIT`."
        )
    settings = {
        "batch_size": args.batch_size * args.np,
        "steps": args.steps,
        "repeats": args.repeats,
        "compression": "none",
    }
    groups = []
    for name, folder in (("other", args.other), ("this", HERE)):
        group = training_group(name, settings, args.np, collective=args.collective)
        env = {**group.env, "PYTHONPATH": str(Path(folder).resolve())}
        groups.append(replace(group, env=env))
    other, this = (seconds_by_round(ranks) for ranks in start(groups))
    figures = {
        "step_seconds": medians({"other": other, "this": this}),
        "ratio": ratio(this, other),
    }
    row = [f"{1000 * seconds:.1f}" for seconds in figures["step_seconds"].values()]
    header = ["other, ms", "this, ms", "this / other"]
    return figures, format_table(header, [[*row, format_spread(figures["ratio"])]])


if __name__ == "__main__":
    run_script(
        __doc__,
        [
            ("--other", "", "the folder of the other checkout"),
            ("-np", 2, "how many processes"),
            ("--collective", ("tensorflow", "mpi", "horovod"), "what joins them"),
            ("--batch-size", 64, "examples of a batch of each process"),
            ("--steps", 10, "steps of a turn"),
            ("--repeats", 30, "turns of each version"),
        ],
        measure,
    )
