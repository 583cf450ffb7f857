"""Callbacks that count the examples of all ranks, in real processes.

What they must log is worked out here by hand. That the others end as on one process,
rows of `test_equality_callbacks.py` show.
"""

import itertools
from pathlib import Path

import keras
import numpy as np
import pytest
from horovod_jobs import run

import tfdist
import tfdist.callbacks.throughput
from tfdist.callbacks import MetricAverage, Throughput
from tfdist.scaling.throughput import read_run

SECONDS = 1200
EPOCHS, STEPS = 3, 4
# Of all ranks together: the last step has a single row, so that one rank has none.
ROWS, BATCH = 19, 6
# Of each rank by itself, without a strategy: different numbers in as many steps.
OWN_ROWS, OWN_BATCH = (16, 14), 4
VALIDATION_ROWS = 5


class Own(keras.callbacks.Callback):
    """Logs what only this rank has measured: its rank squared, and ten times that."""

    def on_epoch_end(self, epoch, logs=None):
        logs["own"] = tfdist.rank() ** 2
        logs["val_own"] = 10 * tfdist.rank() ** 2


def under_strategy(folder):
    strategy = tfdist.strategies.AllReduceStrategy(
        timeout_seconds=300, check_first_step="off"
    )
    with strategy.scope():
        model = compiled(lambda optimizer: optimizer)
    return logs_of(model, folder, ROWS, BATCH, VALIDATION_ROWS)


def without_strategy(folder):
    import tfdist.horovod as hvd

    hvd.init()
    model = compiled(hvd.DistributedOptimizer)
    validated = VALIDATION_ROWS + hvd.rank()
    return logs_of(model, folder, OWN_ROWS[hvd.rank()], OWN_BATCH, validated)


def compiled(distribute):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(distribute(keras.optimizers.SGD(0.01)), "mse", jit_compile=False)
    return model


def logs_of(model, folder, rows, batch, validated):
    """Fit twice with each callback, with a clock that advances at each reading."""
    tfdist.callbacks.throughput.perf_counter = itertools.count(1.0).__next__
    x, y = np.ones((rows, 2)), np.ones((rows, 1))
    file = "run.json" if tfdist.is_chief() else "never.json"
    throughput = Throughput(
        units_per_example={"tokens": 3},
        alone_examples_per_second=2.0,
        json=Path(folder) / file,
    )
    validation = {"validation_data": (x[:validated], y[:validated])}
    return {
        name: [
            model.fit(
                x, y, batch, EPOCHS, verbose=0, callbacks=callbacks, **data
            ).history
            for _ in range(2)
        ]
        for name, callbacks, data in (
            ("average", [Own(), MetricAverage("examples")], validation),
            ("throughput", [throughput], {}),
        )
    }


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The logs of two ranks of a strategy, and the folder of their files."""
    folder = tmp_path_factory.mktemp("together")
    ranks = tfdist.testing.cluster(
        under_strategy, args=(str(folder),), timeout_seconds=SECONDS
    ).values
    return ranks, folder


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """The same of two ranks of Horovod, each with rows of its own."""
    folder = tmp_path_factory.mktemp("apart")
    return run(without_strategy, args=(str(folder),), timeout_seconds=SECONDS), folder


# The rows that each rank trains on and evaluates, and all rows after each step.
PLACES = [
    pytest.param(
        ("together", [3 * 3, 3 * 3 + 1], [2, 3], [6, 12, 18, 19]), id="strategy"
    ),
    pytest.param(
        ("apart", OWN_ROWS, [5, 6], [8, 16, 24, 30]),
        id="horovod",
        marks=[pytest.mark.requires("horovodrun"), pytest.mark.slow],
    ),
]


@pytest.mark.parametrize("place", PLACES)
def test_metric_average_weights_ranks_by_their_examples(request, place):
    fixture, trained, validated, _ = place
    ranks, _ = request.getfixturevalue(fixture)
    own = np.average([0, 1], weights=trained)
    val_own = np.average([0, 10], weights=validated)

    for logs in itertools.chain(*(rank["average"] for rank in ranks)):
        assert logs["own"] == pytest.approx([own] * EPOCHS, rel=1e-6)
        assert logs["val_own"] == pytest.approx([val_own] * EPOCHS, rel=1e-6)


@pytest.mark.parametrize("place", PLACES)
def test_throughput_counts_the_examples_of_all_ranks(request, place):
    fixture, _, _, done = place
    ranks, folder = request.getfixturevalue(fixture)
    # A step takes a second. Of the first epoch two steps are left out, of each other
    # one.
    later = (done[-1] - done[0]) / (STEPS - 1)
    rates = np.array([(done[-1] - done[1]) / (STEPS - 2), later, later])

    for logs in itertools.chain(*(rank["throughput"] for rank in ranks)):
        for name, factor in (
            ("examples_per_second", 1),
            ("tokens_per_second", 3),
            ("scaling_efficiency", 1 / 2 / 2),
        ):
            logged = [float(f"{rate:.3g}") for rate in factor * rates]
            assert logs[name] == pytest.approx(logged)
    # The other rank was given a file of its own.
    assert [path.name for path in folder.iterdir()] == ["run.json"]
    written = read_run(folder / "run.json")
    counted = [epoch.examples_per_second for epoch in written.epochs]
    assert counted == pytest.approx(rates, rel=1e-9)
    assert (written.processes, written.global_batch_size) == (2, done[0])
