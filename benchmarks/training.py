"""Steps of a small convolutional network, on one process and on several.

Five groups train in turns: plain Keras, one process, processes without a collective,
and all processes with this batch each or with this batch shared. Each process gets a
GPU, if there are some; a step then counts as the mean of its turn.
"""

from contextlib import nullcontext

from script import is_program, run_script
from timers import StepTimer, seconds_by_round

from tfdist.benchmarks.figures import medians, spread
from tfdist.benchmarks.processes import Group, check_at_least, run_program, start
from tfdist_cli.table import format_spread, format_table

_ROWS = {
    "step_seconds.plain": "step: plain Keras",
    "step_seconds.alone": "step: one process",
    "step_seconds.apart": "step: all processes, no collective",
    "step_seconds.weak": "step: all processes, this batch each",
    "step_seconds.strong": "step: all processes, this batch shared",
    "speed_against_plain": "speed of one process against plain Keras",
    "weak_efficiency": "efficiency, this batch each (weak scaling)",
    "strong_efficiency": "efficiency, this batch shared (strong scaling)",
    "waiting_share": "share of a step in the collective (weak)",
}


def block_timer(turn, steps):
    """Return `StepTimer` as a callback of Keras 3, which waits for GPUs."""
    import keras

    from tfdist.devices import wait_for_gpus

    class BlockTimer(StepTimer, keras.callbacks.Callback):
        def wait_for_gpus(self):
            return wait_for_gpus()

    return BlockTimer(turn, steps)


def measure(turn, *, collective, batch_size, steps, repeats, compression):
    """Train; return the seconds of the steps of each block but the first."""
    import keras
    from models import build_cnn, make_images

    from tfdist.strategies import AllReduceStrategy

    # TensorFlow compiles in the first block. Without a collective it is plain Keras.
    scope = nullcontext()
    if collective is not None:
        scope = AllReduceStrategy(collective, compression=compression).scope()
    with scope:
        model = build_cnn(keras)
    timer = block_timer(turn, steps)
    model.fit(
        make_images(batch_size),
        steps_per_epoch=steps * (repeats + 1),
        callbacks=[timer],
        verbose=0,
    )
    return timer.blocks[1:]


def training_group(name, settings, size, *, joined=True, collective="tensorflow"):
    """Return a group that runs `measure`; "plain" uses no strategy."""
    is_plain = name == "plain"
    return Group(
        name,
        __file__,
        {**settings, "collective": None if is_plain else collective},
        size,
        joined,
        "tensorflow" if is_plain else collective,
        pinned=True,
    )


def measure_all(args):
    """Measure the five groups with each batch size."""
    figures = [measure_batch(args, int(each)) for each in args.batch_sizes.split(",")]
    return figures, training_table(figures)


def measure_batch(args, batch_size):
    """Measure the five groups with one batch size."""
    # "apart" keeps all cores busy without communication, so "weak" against "apart"
    # shows the time spent waiting.
    check_at_least(2, np=args.np, steps=args.steps)
    check_at_least(1, batch_size=batch_size, repeats=args.repeats)
    if args.collective == "horovod" and args.compression not in ("none", "fp16"):
        raise ValueError(
            "Horovod has no compression but 'fp16'. Received: --compression "
            f"{args.compression}. Use fp16, or --collective tensorflow."
        )
    settings = {
        "steps": args.steps,
        "repeats": args.repeats,
        "compression": args.compression,
    }

    def group(name, batch_size, size=1, joined=True):
        own = {**settings, "batch_size": batch_size}
        return training_group(
            name, own, size, joined=joined, collective=args.collective
        )

    groups = [
        group("plain", batch_size),
        group("alone", batch_size),
        group("apart", batch_size, args.np, joined=False),
        # Batch sizes are global.
        group("weak", batch_size * args.np, args.np),
        group("strong", batch_size, args.np),
    ]
    blocks = dict(zip([each.name for each in groups], start(groups), strict=True))
    figures = training_figures(batch_size, args.np, blocks)
    return {"compression": args.compression, **figures}


def training_figures(batch_size, size, steps):
    """Return median steps in seconds and the ratios of the five groups, as spreads."""
    # A ratio is taken within each round of blocks, which followed each other in
    # seconds.
    rounds = {name: seconds_by_round(ranks) for name, ranks in steps.items()}

    def efficiencies(name, base="alone"):
        """Return the ratio of steps, which with equal batches is that of speeds."""
        pairs = zip(rounds[name], rounds[base], strict=True)
        return [base_seconds / seconds for seconds, base_seconds in pairs]

    return {
        "batch_size": batch_size,
        "processes": size,
        "step_seconds": medians(rounds),
        "speed_against_plain": spread(efficiencies("alone", "plain")),
        "weak_efficiency": spread(efficiencies("weak")),
        "strong_efficiency": spread([each / size for each in efficiencies("strong")]),
        # Noise may make the steps without a collective slower.
        "waiting_share": spread(
            [max(0.0, 1.0 - each) for each in efficiencies("weak", "apart")]
        ),
    }


def training_table(figures, columns=()):
    """Return a table with one row per figure and one column per batch size."""
    rows = []
    for path, name in _ROWS.items():
        key, _, kind = path.partition(".")
        cells = [
            f"{column[key][kind] * 1e3:.2f} ms" if kind else format_spread(column[key])
            for column in figures
        ]
        rows.append([name, *cells])
    header = [
        f"{figures[0]['processes']} processes",
        *(columns or [f"batch {column['batch_size']}" for column in figures]),
    ]
    return format_table(header, rows)


if __name__ == "__main__":
    if is_program():
        run_program(measure)
    else:
        options = [
            ("-np", 2, "how many processes"),
            ("--batch-sizes", "64,512", "examples in a step of one process"),
            ("--collective", ("tensorflow", "mpi", "horovod"), "what moves gradients"),
            ("--compression", ("none", "fp16", "bf16", "powersgd"), "their form"),
            ("--steps", 10, "steps of a turn; the first is not timed"),
            ("--repeats", 10, "timed turns of each configuration"),
        ]
        run_script(__doc__, options, measure_all)
