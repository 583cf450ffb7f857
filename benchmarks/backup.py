"""The time that saving the training state adds to an epoch."""

import contextlib
import tempfile
from time import perf_counter

from script import is_program, run_script
from timers import seconds_by_round

from tfdist.benchmarks.figures import medians, ratio, spread
from tfdist.benchmarks.processes import Group, check_at_least, run_program, start
from tfdist_cli.table import format_table

# The number and shape of scikit-learn's training digits.
_EXAMPLES = 1437
_SHAPE = (8, 8, 1)
_EXAMPLES_OF_STEP = 32
# The class, its save_freq, and its label.
_BACKUPS = {
    "none": (None, "epoch", "none"),
    "tfdist": ("tfdist", "epoch", "each epoch"),
    "steps": ("tfdist", 10, "every 10 steps"),
    "keras": ("keras", "epoch", "Keras's own, each epoch"),
}


class Saves:
    """The times at which saves started, returned, and reached the disk."""

    def __init__(self):
        self.begun, self.over, self.on_disk, self.sizes = [], [], [], []

    def timed(self, save):
        """Return a wrapper of `save` that records when it starts and returns."""

        def timed(*arguments, **options):
            self.begun.append(perf_counter())
            save(*arguments, **options)
            self.over.append(perf_counter())

        return timed

    def noted(self, write):
        """Return a wrapper of `write` that records when the state is on disk."""

        def noted(content):
            write(content)
            self.on_disk.append(perf_counter())
            self.sizes.append(len(content))

        return noted

    def clear(self):
        """Forget all saves."""
        for times in (self.begun, self.over, self.on_disk, self.sizes):
            times.clear()

    def report(self):
        """Return the seconds until each save returned, and until it was on disk."""
        # Ranks that write nothing have no write times.
        return {
            "hold_seconds": _differences(self.over, self.begun),
            "disk_seconds": _differences(self.on_disk, self.begun),
            "bytes": self.sizes,
        }


def measure(turn, *, backup, save_freq, batch_size, epochs, repeats):
    """Train; return the seconds of epochs and saves in each turn but the first."""
    # TensorFlow compiles in the first turn.
    import keras
    from models import build_cnn

    from tfdist.strategies import AllReduceStrategy

    with AllReduceStrategy().scope():
        model = build_cnn(keras, shape=_SHAPE)
    saves = Saves()
    with tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
        callbacks = _callbacks(backup, folder, save_freq, saves)

        def settle():
            if backup == "tfdist":
                callbacks[0].settle()
            if len(timer.turns) == 1:
                saves.clear()

        timer = _make_timer(turn, epochs, settle)
        model.fit(
            _make_digits(batch_size),
            epochs=epochs * (repeats + 1),
            callbacks=[timer, *callbacks],
            verbose=0,
        )
    return {"turns": timer.turns[1:], "saves": saves.report()}


def _make_timer(turn, epochs, settle):
    """Return a callback that times epochs, some in each turn; it must come first."""
    # An epoch lasts until the next one begins, so that callbacks at its end count. The
    # first epoch of a turn is left out: no thread has anything left to write. `settle`
    # waits for threads that would disturb the turns of others.
    import keras

    class EpochTimer(keras.callbacks.Callback):
        turns = []
        begin = None

        def on_epoch_begin(self, epoch, logs=None):
            self.end_epoch()
            is_first = epoch % epochs == 0
            if is_first:
                if self.turns:
                    self.pass_on()
                turn.take()
                self.turns.append([])
            self.begin = None if is_first else perf_counter()

        def on_train_end(self, logs=None):
            self.end_epoch()
            self.pass_on()
            turn.take()

        def end_epoch(self):
            if self.begin is not None:
                self.turns[-1].append(perf_counter() - self.begin)
            self.begin = None

        def pass_on(self):
            settle()
            turn.pass_on()

    return EpochTimer()


def _callbacks(backup, folder, save_freq, saves):
    """Return the callback that saves the training state, if there is one."""
    import keras

    from tfdist.callbacks import BackupAndRestore

    class TimedBackup(BackupAndRestore):
        @contextlib.contextmanager
        def resuming(self, model):
            with super().resuming(model) as position:
                self._files.write = saves.noted(self._files.write)
                yield position

        def settle(self):
            self._writer.wait()

        def _save(self, *arguments):
            saves.timed(super()._save)(*arguments)

    if backup is None:
        return []
    if backup == "tfdist":
        return [TimedBackup(folder, save_freq)]
    # The strategy recognizes Keras's class itself, and runs it on the chief only.
    callback = keras.callbacks.BackupAndRestore(folder, save_freq)
    callback.on_epoch_end = saves.timed(callback.on_epoch_end)
    return [callback]


def _make_digits(batch_size):
    """Return random images with labels, shuffled equally on all ranks."""
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(0)
    images = random.random((_EXAMPLES, *_SHAPE), dtype=np.float32)
    labels = random.integers(10, size=_EXAMPLES)
    rows = tf.data.Dataset.from_tensor_slices((images, labels))
    return rows.shuffle(_EXAMPLES, seed=1).batch(batch_size)


def measure_all(args):
    """Measure the four groups."""
    check_at_least(2, np=args.np, epochs=args.epochs)
    check_at_least(1, repeats=args.repeats)
    groups = [
        Group(
            name,
            __file__,
            {
                "backup": backup,
                "save_freq": save_freq,
                "batch_size": _EXAMPLES_OF_STEP * args.np,
                "epochs": args.epochs,
                "repeats": args.repeats,
            },
            args.np,
        )
        for name, (backup, save_freq, _) in _BACKUPS.items()
    ]
    reports = zip(groups, start(groups), strict=True)
    figures = backup_figures({group.name: ranks for group, ranks in reports})
    return figures, _table(figures)


def backup_figures(groups):
    """Return the cost of saving per epoch, taken within each round of turns."""
    # Small costs are noisy. The time that a save blocks `fit` is not, but it leaves out
    # the work of threads.
    rounds = {
        name: seconds_by_round([report["turns"] for report in ranks])
        for name, ranks in groups.items()
    }
    cost = {
        name: {key: value - 1 for key, value in ratio(epochs, rounds["none"]).items()}
        for name, epochs in rounds.items()
        if name != "none"
    }
    return {
        "processes": len(groups["none"]),
        "epoch_seconds": medians(rounds),
        "cost": cost,
        "saves": {name: _saves([r["saves"] for r in groups[name]]) for name in cost},
    }


def _saves(ranks):
    """Return the times of saves on the slowest rank; only the chief writes."""
    taking_part = [rank["hold_seconds"] for rank in ranks if rank["hold_seconds"]]
    holds = [max(of_save) for of_save in zip(*taking_part, strict=True)]
    chief = ranks[0]
    is_in_thread = bool(chief["disk_seconds"])
    return {
        "count": len(holds),
        "hold_seconds": spread(holds),
        "longest_hold_seconds": max(holds),
        "disk_seconds": spread(chief["disk_seconds"]) if is_in_thread else None,
        "bytes": spread(chief["bytes"])["median"] if is_in_thread else None,
    }


def _table(figures):
    rows = []
    for name, seconds in figures["epoch_seconds"].items():
        row = [_BACKUPS[name][2], _milliseconds(seconds)]
        if name in figures["saves"]:
            saves, cost = figures["saves"][name], figures["cost"][name]
            median, low, high = (100 * cost[key] for key in ("median", "low", "high"))
            row.append(f"{median:.1f} % [{low:.1f}, {high:.1f}]")
            row.append(_milliseconds(saves["hold_seconds"]["median"]))
            if saves["disk_seconds"] is not None:
                row.append(_milliseconds(saves["disk_seconds"]["median"]))
                row.append(f"{saves['bytes'] / 2**10:.0f} KiB")
        rows.append(row + [""] * (6 - len(row)))
    header = [
        f"backup, {figures['processes']} processes",
        *("epoch", "added to an epoch", "a save holds up", "on disk after", "size"),
    ]
    return format_table(header, rows)


def _milliseconds(seconds):
    return f"{seconds * 1e3:.2f} ms"


def _differences(ends, begins):
    return [end - begin for end, begin in zip(ends, begins, strict=False)]


if __name__ == "__main__":
    if is_program():
        run_program(measure)
    else:
        options = [
            ("-np", 2, "how many processes"),
            ("--epochs", 6, "epochs of a turn; the first is not timed"),
            ("--repeats", 16, "timed turns of each configuration"),
        ]
        run_script(__doc__, options, measure_all)
