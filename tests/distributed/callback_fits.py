"""Fits of `test_callbacks` in its processes: two with one instance of each callback.

All of them train y = w x on the same rows, which NumPy can do as well.
"""

import contextlib
import gc
import io
import itertools
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

import tfdist
import tfdist.callbacks.throughput
from tfdist.callbacks import (
    BroadcastVariables,
    LearningRateScale,
    LearningRateSchedule,
    LearningRateWarmup,
    MetricAverage,
    PrintLearningRate,
    RankZero,
    Throughput,
)
from tfdist.scaling.throughput import read_run

# Keras rounds the momentum to float32, which has this one.
START, RATE, MOMENTUM = (0.5, -0.25), 0.01, 0.875
EPOCHS, WARMUP_EPOCHS = 3, 2
DECIDED_RATE, RATE_OF_ROOT, DECAY = 0.004, 0.002, 0.25
ORDERS = range(2)
VALIDATION_ROWS = 5


@dataclass(frozen=True)
class Batches:
    """Rows of a step, without a shuffle."""

    rows: tuple[int, ...]  # Of an epoch; by rank, where each has its own.
    size: int  # Of a step: of all rows, or of those of a rank.

    @property
    def steps(self) -> int:
        """How many steps an epoch has."""
        return -(-self.rows[0] // self.size)


# The last step of an epoch has a single row, so that all ranks but one have none.
JOINT = Batches((19,), 6)
# Ranks of different lengths, in equally many steps.
OWN = Batches((12, 10), 4)


def data(part, batches):
    """Return the rows of a rank, or all of them where ranks share batches."""
    generator = np.random.default_rng(5)
    x = generator.normal(size=(sum(batches.rows), 2))
    y = x @ [[1.0], [-2.0]] + generator.normal(size=(len(x), 1))
    start = sum(batches.rows[:part])
    rows = slice(start, start + batches.rows[part])
    return x[rows], y[rows]


@dataclass(frozen=True)
class Ranks:
    """This process among others; `strategy` is None for `tfdist.horovod`."""

    rank: int
    size: int
    batches: Batches
    strategy: Any
    folder: str

    @property
    def data(self):
        """The rows that are given to `fit` here."""
        return data(self.rank if self.strategy is None else 0, self.batches)

    def model(self):
        """Return a compiled model; its first weights are the same everywhere."""
        keras.utils.clear_session()
        if self.strategy is None:
            import tfdist.horovod as hvd

            return _compiled(hvd.DistributedOptimizer)
        with self.strategy.scope():
            return _compiled(lambda optimizer: optimizer)


def _compiled(distribute):
    """Compile the model with an optimizer of which something is made."""
    layer = keras.layers.Dense(1, use_bias=False)
    model = keras.Sequential([keras.Input((2,)), layer])
    model.set_weights([np.array(START).reshape(2, 1)])
    optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
    model.compile(distribute(optimizer), "mse", jit_compile=False)
    return model


@dataclass(frozen=True)
class Fit:
    """Result of a `fit`."""

    logs: dict[str, list[float]]
    weights: list[float]
    printed: list[str]
    noted: Any


def two_fits(ranks, *callbacks, prepare=None, note=None, **options):
    """Call `fit` twice with the same callbacks; `note` finds more after each."""
    # With a user's callback that looks at batches the ranks agree in every batch,
    # which would hide that they differ.
    model, fits = ranks.model(), []
    for _ in range(2):
        if prepare is not None:
            prepare(model)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            history = model.fit(
                *ranks.data,
                batch_size=ranks.batches.size,
                shuffle=False,
                verbose=0,
                callbacks=list(callbacks),
                **{"epochs": EPOCHS, **options},
            )
        fits.append(
            Fit(
                logs=history.history,
                weights=model.get_weights()[0].ravel().tolist(),
                printed=printed.getvalue().splitlines(),
                noted=None if note is None else note(),
            )
        )
    return fits


class Own(keras.callbacks.Callback):
    """Logs what only this rank has measured: its rank squared, and ten times that."""

    def __init__(self, rank):
        super().__init__()
        self.rank = rank

    def on_epoch_end(self, epoch, logs=None):
        logs["own"] = self.rank**2
        logs["val_own"] = 10 * self.rank**2


class Noting(keras.callbacks.Callback):
    """Notes the epochs, and ends the training after the third."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(epoch)
        self.model.stop_training = epoch == EPOCHS - 1


class Deciding(Noting):
    """Changes the learning rate within an epoch, too."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.model.optimizer.learning_rate = DECIDED_RATE


def change_root(ranks):
    """Return what changes weights and learning rate on the last rank alone."""

    def change(model):
        if ranks.rank == ranks.size - 1:
            model.set_weights([2.0 * weight for weight in model.get_weights()])
            model.optimizer.learning_rate = RATE_OF_ROOT

    return change


def average(ranks):
    x, y = ranks.data
    # Without a strategy, rank 1 has one row more.
    rows = VALIDATION_ROWS + (ranks.rank if ranks.strategy is None else 0)
    callbacks = Own(ranks.rank), MetricAverage("examples")
    return two_fits(ranks, *callbacks, validation_data=(x[:rows], y[:rows]))


def throughput(ranks):
    file = Path(ranks.folder) / "run.json"
    callback = Throughput(
        units_per_example={"tokens": 3},
        alone_examples_per_second=2.0,
        json=file if ranks.rank == 0 else Path(ranks.folder) / "never.json",
    )
    return two_fits(
        ranks, callback, note=lambda: read_run(file) if ranks.rank == 0 else None
    )


def rank_zero(ranks):
    callback = Deciding()
    return two_fits(ranks, RankZero(callback), epochs=9, note=callback.epochs.copy)


TOGETHER = {
    "broadcast": lambda ranks: BroadcastVariables(root_rank=ranks.size - 1),
    "own": lambda ranks: Own(ranks.rank),
    "average": lambda ranks: MetricAverage(weights="examples"),
    "throughput": lambda ranks: Throughput(),
    "scale": lambda ranks: LearningRateScale("linear"),
    "warm-up": lambda ranks: LearningRateWarmup(WARMUP_EPOCHS, verbose=1),
    "schedule": lambda ranks: LearningRateSchedule(lambda _: DECAY, WARMUP_EPOCHS),
    "print": lambda ranks: PrintLearningRate(),
    "rank zero": lambda ranks: RankZero(Noting()),
}


def order_of(number):
    """Return in which order `together` gives the callbacks, by name."""
    return random.Random(number).sample(sorted(TOGETHER), len(TOGETHER))


def together(number):
    def case(ranks):
        callbacks = {name: TOGETHER[name](ranks) for name in order_of(number)}
        return two_fits(
            ranks,
            *callbacks.values(),
            prepare=change_root(ranks),
            note=callbacks["rank zero"].callback.epochs.copy,
            epochs=9,
        )

    return case


CASES = {
    "average": average,
    "throughput": throughput,
    "rank zero": rank_zero,
    **{f"order {number}": together(number) for number in ORDERS},
}


def run_under_strategy(folder):
    """Run all cases under a strategy; what became of them, by case."""
    strategy = tfdist.strategies.AllReduceStrategy(
        timeout_seconds=300, check_first_step="off"
    )
    return _run(Ranks(tfdist.rank(), tfdist.size(), JOINT, strategy, folder))


def run_without_scope(folder):
    """Run all cases with `tfdist.horovod`; what became of them, by case."""
    import tfdist.horovod as hvd

    hvd.init()
    return _run(Ranks(hvd.rank(), hvd.size(), OWN, None, folder))


def _run(ranks):
    """Run all cases, with a clock that advances a second at each reading."""
    # Each model collects garbage, which need not look at what all of them use.
    gc.collect()
    gc.freeze()
    keras.config.set_floatx("float64")
    tfdist.callbacks.throughput.perf_counter = itertools.count(1.0).__next__
    return {name: case(ranks) for name, case in CASES.items()}
