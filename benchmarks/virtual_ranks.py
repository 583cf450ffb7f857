"""The time of a step with `virtual_ranks` against the same step without."""

from script import is_program, run_script
from timers import seconds_by_round

from tfdist.benchmarks.figures import medians, ratio
from tfdist.benchmarks.processes import Group, check_at_least, run_program, start
from tfdist_cli.table import format_spread, format_table

_BATCH_SIZES = (64, 512)


def measure(turn, *, virtual_ranks, batch_size, steps, repeats):
    """Train; return the seconds of the steps of each block but the first."""
    import keras
    from models import build_cnn, make_images
    from training import block_timer

    from tfdist.strategies import AllReduceStrategy

    strategy = AllReduceStrategy("tensorflow", virtual_ranks=virtual_ranks)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = build_cnn(keras)
    timer = block_timer(turn, steps)
    model.fit(
        make_images(batch_size),
        steps_per_epoch=steps * (repeats + 1),
        callbacks=[timer],
        verbose=0,
    )
    return timer.blocks[1:]


def measure_all(args):
    """Measure each size of batch without parts, with one per process, and with all."""
    check_at_least(2, np=args.np, steps=args.steps)
    check_at_least(1, repeats=args.repeats)
    figures = []
    for batch_size in _BATCH_SIZES:
        groups = [
            Group(
                name,
                __file__,
                {
                    "virtual_ranks": count,
                    "batch_size": batch_size * args.np,
                    "steps": args.steps,
                    "repeats": args.repeats,
                },
                args.np,
            )
            for name, count in (("none", None), ("one", args.np), ("all", args.parts))
        ]
        names = [group.name for group in groups]
        reports = dict(zip(names, start(groups), strict=True))
        figures.append({"batch_size": batch_size, **part_figures(reports)})
    return figures, _table(args, figures)


def part_figures(reports):
    """Return median steps, and how much longer steps with parts take than others."""
    rounds = {name: seconds_by_round(ranks) for name, ranks in reports.items()}
    return {
        "step_seconds": medians(rounds),
        "against_none": ratio(rounds["all"], rounds["none"]),
        "one_against_none": ratio(rounds["one"], rounds["none"]),
        "against_one": ratio(rounds["all"], rounds["one"]),
    }


def _table(args, figures):
    rows = [
        [
            str(row["batch_size"]),
            *(f"{1000 * row['step_seconds'][name]:.1f}" for name in ("none", "all")),
            *(
                format_spread(row[name])
                for name in ("against_none", "one_against_none", "against_one")
            ),
        ]
        for row in figures
    ]
    parts = f"{args.parts} parts"
    header = ["batch each", "without, ms", f"{parts}, ms", f"{parts} / without"]
    header += [f"{args.np} parts / without", f"{parts} / {args.np}"]
    return format_table(header, rows)


if __name__ == "__main__":
    if is_program():
        run_program(measure)
    else:
        run_script(
            __doc__,
            [
                ("-np", 2, "how many processes"),
                ("--parts", 8, "virtual_ranks"),
                ("--steps", 10, "steps of a turn"),
                ("--repeats", 8, "timed turns of each job"),
            ],
            measure_all,
        )
