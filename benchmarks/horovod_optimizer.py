"""Training on Horovod: `AllReduceStrategy` compared with Horovod's own optimizer.

The latter needs legacy tf-keras in TensorFlow's minor version. Four jobs take turns.
"""

from importlib.util import find_spec

from script import LEGACY_KERAS, is_program, run_script

from tfdist.benchmarks.figures import medians, ratio, seconds_by_round
from tfdist.benchmarks.processes import Group, check_at_least, run_program, start
from tfdist.benchmarks.timers import StepTimer
from tfdist.benchmarks.training import HOROVOD_ENV, training_group
from tfdist_cli.table import format_spread, format_table

_ROWS = {
    "step_seconds.alone": "step: one process",
    "step_seconds.weak": "step: all processes",
    "weak_efficiency": "efficiency (weak scaling)",
    "step_seconds.their_alone": "step: one process, Horovod's optimizer in tf-keras",
    "step_seconds.their_weak": "step: all processes, Horovod's optimizer in tf-keras",
    "their_weak_efficiency": "efficiency of Horovod's optimizer in tf-keras",
    "efficiency_against_theirs": "efficiency against that of Horovod's optimizer",
    "speed_against_theirs": "speed of all processes against Horovod's optimizer",
}


def measure(turn, *, batch_size, steps, repeats, compression):
    """Train as Horovod's documentation shows, and return the seconds of the steps."""
    import horovod.tensorflow.keras as hvd
    import tensorflow as tf

    from tfdist.benchmarks.models import build_cnn, make_images

    class BlockTimer(StepTimer, tf.keras.callbacks.Callback):
        pass

    hvd.init()
    optimizer = hvd.DistributedOptimizer(
        tf.keras.optimizers.Adam(), compression=getattr(hvd.Compression, compression)
    )
    model = build_cnn(tf.keras, optimizer)
    timer = BlockTimer(turn, steps)
    model.fit(
        make_images(batch_size),
        steps_per_epoch=steps * (repeats + 1),
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), timer],
        verbose=0,
    )
    return timer.blocks[1:]


def measure_all(args):
    """Measure the four groups."""
    if find_spec("tf_keras") is None:
        raise ImportError(
            "This benchmark needs tf-keras. Received: an environment without it. "
            "Run: pip install tf-keras, in the minor version of TensorFlow"
        )
    check_at_least(2, np=args.np, steps=args.steps)
    check_at_least(1, batch_size=args.batch_size, repeats=args.repeats)
    settings = {
        "batch_size": args.batch_size,
        "steps": args.steps,
        "repeats": args.repeats,
        "compression": args.compression,
    }

    def ours(name, size):
        # Under the strategy the batch size is global.
        own = settings | {"batch_size": args.batch_size * size}
        return training_group(name, own, size, collective="horovod")

    def theirs(name, size):
        env = HOROVOD_ENV | LEGACY_KERAS
        return Group(name, __file__, settings, size, collective="horovod", env=env)

    groups = [
        *(ours("alone", 1), ours("weak", args.np)),
        *(theirs("their_alone", 1), theirs("their_weak", args.np)),
    ]
    reports = start(groups)
    rounds = {
        group.name: seconds_by_round(ranks)
        for group, ranks in zip(groups, reports, strict=True)
    }
    figures = {
        "batch_size": args.batch_size,
        "processes": args.np,
        "compression": args.compression,
        **horovod_figures(rounds),
    }
    return figures, _table(figures)


def horovod_figures(rounds):
    """Return the median steps and the ratios, each taken within a round of blocks."""

    def quotients(name, base):
        pairs = zip(rounds[base], rounds[name], strict=True)
        return [before / after for before, after in pairs]

    ours = quotients("weak", "alone")
    theirs = quotients("their_weak", "their_alone")
    return {
        "step_seconds": medians(rounds),
        "weak_efficiency": ratio(rounds["alone"], rounds["weak"]),
        "their_weak_efficiency": ratio(rounds["their_alone"], rounds["their_weak"]),
        "efficiency_against_theirs": ratio(ours, theirs),
        # With equal batches the ratio of speeds is that of the steps.
        "speed_against_theirs": ratio(rounds["their_weak"], rounds["weak"]),
    }


def _table(figures):
    rows = []
    for path, label in _ROWS.items():
        key, _, kind = path.partition(".")
        value = figures[key]
        cell = f"{value[kind] * 1e3:.2f} ms" if kind else format_spread(value)
        rows.append([label, cell])
    header = [f"{figures['processes']} processes", f"batch {figures['batch_size']}"]
    return format_table(header, rows)


if __name__ == "__main__":
    if is_program():
        run_program(measure)
    else:
        options = [
            ("-np", 2, "how many processes"),
            ("--batch-size", 64, "examples in a step of one process"),
            ("--steps", 10, "steps of a turn; the first is not timed"),
            ("--repeats", 10, "timed turns of each configuration"),
            ("--compression", "none", "none or fp16"),
        ]
        run_script(__doc__, options, measure_all)
