"""Training with `AllReduceStrategy` and with another library, in turns.

"torch" trains the same network with DistributedDataParallel over Gloo; "horovod" with
Horovod's optimizer and legacy tf-keras, which must be of TensorFlow's minor version.
"""

from importlib.util import find_spec

from script import LEGACY_KERAS, is_program, run_script
from timers import StepTimer, seconds_by_round
from training import training_figures, training_group, training_table

from tfdist.benchmarks.figures import ratio
from tfdist.benchmarks.processes import Group, check_at_least, run_program, start
from tfdist_cli.table import format_spread

_ENV = {
    "torch": {"GLOO_SOCKET_IFNAME": "lo"},
    "horovod": LEGACY_KERAS,
}
_MODULES = {"torch": "torch", "horovod": "tf_keras"}


def measure(turn, *, library, batch_size, steps, repeats):
    """Train with another library; return the seconds of the steps of each block."""
    train = {"torch": train_with_torch, "horovod": _train_with_horovod}[library]
    # Libraries compile, connect and find their buckets in the first block.
    return train(turn, batch_size, steps, steps * (repeats + 1)).blocks[1:]


def train_with_torch(turn, batch_size, block_steps, steps, compression="none"):
    """Train as torch's documentation shows, and return the timer."""
    import torch
    from models import CLASSES, IMAGE_SHAPE
    from torch import distributed, nn
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    from tfdist.cluster import detect

    cluster = detect()
    torch.set_num_threads(1)
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten()),
        *(nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, CLASSES)),
    )
    if cluster.is_distributed:
        distributed.init_process_group(
            "gloo",
            init_method=f"tcp://{cluster.addresses[0]}",
            rank=cluster.rank,
            world_size=cluster.size,
        )
        model = nn.parallel.DistributedDataParallel(model)
        if compression != "none":
            hook = getattr(default_hooks, f"{compression}_compress_hook")
            model.register_comm_hook(None, hook)
    optimizer = torch.optim.Adam(model.parameters())
    loss_of = nn.CrossEntropyLoss()
    height, width, channels = IMAGE_SHAPE
    images = torch.rand(batch_size, channels, height, width)
    labels = torch.randint(CLASSES, (batch_size,))
    timer = StepTimer(turn, block_steps)
    for step in range(steps):
        timer.on_train_batch_begin(step)
        optimizer.zero_grad()
        loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
        timer.on_train_batch_end(step)
    if cluster.is_distributed:
        # Its threads would abort the process.
        distributed.destroy_process_group()
    return timer


def _train_with_horovod(turn, batch_size, block_steps, steps):
    """Train as Horovod's documentation shows, and return the timer."""
    import horovod.tensorflow.keras as hvd
    import tensorflow as tf
    from models import build_cnn, make_images

    class BlockTimer(StepTimer, tf.keras.callbacks.Callback):
        pass

    hvd.init()
    model = build_cnn(tf.keras, hvd.DistributedOptimizer(tf.keras.optimizers.Adam()))
    timer = BlockTimer(turn, block_steps)
    model.fit(
        make_images(batch_size),
        steps_per_epoch=steps,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), timer],
        verbose=0,
    )
    return timer


def measure_all(args):
    """Measure the groups of both libraries."""
    module = _MODULES[args.against]
    if find_spec(module) is None:
        raise ImportError(
            f"This benchmark needs {module}. Received: an environment without it. "
            f"Run pip install {module}, or compare with another library."
        )
    check_at_least(2, np=args.np, steps=args.steps)
    check_at_least(1, repeats=args.repeats)
    check_at_least(args.np, batch_size=args.batch_size)
    timing = {"steps": args.steps, "repeats": args.repeats}

    def ours(name, batch_size, size, joined=True):
        settings = {**timing, "batch_size": batch_size, "compression": "none"}
        return training_group(
            name, settings, size, joined=joined, collective=args.collective
        )

    def theirs(name, batch_size, size, joined=True):
        # Of one process, where the batch size of a strategy is global.
        each = batch_size // size if joined else batch_size
        settings = {**timing, "library": args.against, "batch_size": each}
        collective = "horovod" if args.against == "horovod" else "tensorflow"
        env = _ENV[args.against]
        return Group(
            f"{args.against}, {name}", __file__, settings, size, joined, collective, env
        )

    one, both = args.batch_size, args.batch_size * args.np
    groups = [
        group(*kind)
        for kind in (
            ("alone", one, 1),
            ("apart", one, args.np, False),
            ("weak", both, args.np),
            ("strong", one, args.np),
        )
        for group in (ours, theirs)
    ]
    reports = start([ours("plain", one, 1), *groups])
    plain, *others = reports
    names = ("alone", "apart", "weak", "strong")
    figures = parallel_figures(
        args.batch_size,
        args.np,
        {"plain": plain, **dict(zip(names, others[::2], strict=True))},
        dict(zip(names, others[1::2], strict=True)),
    )
    return figures, _table(args, figures)


def parallel_figures(batch_size, size, ours, theirs):
    """Return the figures of both libraries, and efficiencies against each other."""
    # One process of the other library is as it is without it.
    theirs = {"plain": theirs["alone"], **theirs}

    def efficiencies(blocks, name):
        alone, several = (seconds_by_round(blocks[key]) for key in ("alone", name))
        return [one / each for one, each in zip(alone, several, strict=True)]

    return {
        "tfdist": training_figures(batch_size, size, ours),
        "other": training_figures(batch_size, size, theirs),
        **{
            f"{name}_against_other": ratio(
                efficiencies(ours, name), efficiencies(theirs, name)
            )
            for name in ("weak", "strong")
        },
    }


def _table(args, figures):
    names = [f"tfdist, {args.collective}", args.against]
    table = training_table([figures["tfdist"], figures["other"]], names)
    return "\n".join(
        [
            table,
            "",
            f"Efficiency against {args.against}, batch {args.batch_size}: weak scaling "
            f"{format_spread(figures['weak_against_other'])}, strong scaling "
            f"{format_spread(figures['strong_against_other'])}",
        ]
    )


if __name__ == "__main__":
    if is_program():
        run_program(measure)
    else:
        options = [
            ("--against", ("torch", "horovod"), "the other library"),
            ("--collective", ("mpi", "tensorflow", "horovod"), "tfdist's engine"),
            ("-np", 2, "how many processes"),
            ("--batch-size", 64, "examples in a step of one process"),
            ("--steps", 10, "steps of a turn; the first is not timed"),
            ("--repeats", 10, "timed turns of each configuration"),
        ]
        run_script(__doc__, options, measure_all)
