"""The time that the flight recorder and the callback `Verdict` add to a step.

Two jobs train the network of `training.py` in turns, one with both of them
and one with neither.
"""

from script import is_program, run_script
from timers import EpochMeter

from tfdist.benchmarks.figures import medians, ratio
from tfdist.benchmarks.processes import Group, check_at_least, run_program, start
from tfdist_cli.table import format_spread, format_table


def measure(turn, *, is_recorded, collective, batch_size, steps, repeats):
    """Train; return the seconds of each epoch but the first two."""
    import keras
    from models import build_cnn, make_images

    from tfdist.callbacks import Verdict
    from tfdist.recorder import graph
    from tfdist.strategies import AllReduceStrategy

    class Meter(EpochMeter, keras.callbacks.Callback):
        pass

    if not is_recorded:
        # Graphs of deterministic operations record nothing.
        graph.is_deterministic = lambda: True
    with AllReduceStrategy(collective).scope():
        model = build_cnn(keras)
    meter = Meter(turn, lambda: (0.0, None))
    model.fit(
        make_images(batch_size),
        steps_per_epoch=steps,
        epochs=repeats + 2,
        callbacks=[*([Verdict()] if is_recorded else []), meter],
        verbose=0,
    )
    return [epoch["seconds"] for epoch in meter.epochs]


def measure_all(args):
    """Measure both jobs."""
    check_at_least(2, np=args.np, steps=args.steps)
    check_at_least(1, batch_size=args.batch_size, repeats=args.repeats)
    settings = {
        "collective": args.collective,
        "batch_size": args.batch_size * args.np,
        "steps": args.steps,
        "repeats": args.repeats,
    }
    with_it, without = start(
        [
            Group(
                "with the recorder" if is_recorded else "without",
                __file__,
                settings | {"is_recorded": is_recorded},
                args.np,
                collective=args.collective,
            )
            for is_recorded in (True, False)
        ]
    )
    reports = {"with": with_it, "without": without}
    figures = {"batch_size": args.batch_size, **cost_figures(reports, args.steps)}
    return figures, _table(args, figures)


def cost_figures(reports, steps):
    """Return the seconds of a step of the slowest rank, and how they compare."""
    rounds = {
        name: [max(ranks) / steps for ranks in zip(*epochs, strict=True)]
        for name, epochs in reports.items()
    }
    return {
        "step_seconds": medians(rounds),
        "ratio": ratio(rounds["with"], rounds["without"]),
    }


def _table(args, figures):
    seconds = figures["step_seconds"]
    row = [str(args.batch_size)]
    row += [f"{1000 * seconds[name]:.2f}" for name in ("without", "with")]
    cost = {name: 100 * (value - 1) for name, value in figures["ratio"].items()}
    header = ["batch each", "without, ms", "with, ms", "cost, %"]
    return format_table(header, [[*row, format_spread(cost)]])


if __name__ == "__main__":
    if is_program():
        run_program(measure)
    else:
        run_script(
            __doc__,
            [
                ("-np", 2, "how many processes"),
                ("--collective", ("tensorflow", "mpi"), "what joins the processes"),
                ("--batch-size", 64, "examples of a batch of each process"),
                ("--steps", 20, "steps of an epoch"),
                ("--repeats", 40, "epochs of each job"),
            ],
            measure_all,
        )
