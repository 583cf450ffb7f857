"""Throughput in real `fit` calls, on a clock that advances a second per reading.

It is read when the counted part of an epoch starts and after each step, so n counted
steps take n seconds, whatever happens beside them.
"""

import itertools
import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.callbacks import Throughput, ranks
from tfdist.scaling.throughput import EpochRate, read_run

ALL_RANKS = "examples_per_second"


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A second passes at each reading."""
    seconds = itertools.count(1.0)
    monkeypatch.setattr(
        "tfdist.callbacks.throughput.perf_counter", lambda: next(seconds)
    )
    return seconds


def rows(count):
    """Return inputs and targets."""
    x = np.linspace(0.0, 1.0, 4 * count, dtype="float32").reshape(count, 4)
    return x, x[:, :1]


def model_of(kind=keras.Sequential, strategy=None, **compile_options):
    """Return a small compiled model."""
    with (strategy or tf.distribute.get_strategy()).scope():
        inputs = keras.Input((4,))
        outputs = keras.layers.Dense(1)(inputs)
        model = (
            keras.Sequential([inputs, keras.layers.Dense(1)])
            if kind is keras.Sequential
            else kind(inputs, outputs)
        )
        model.compile("sgd", "mse", **compile_options)
    return model


def fit(model, count, throughput, epochs=1, **options):
    """Train with batches of 8 and return the history."""
    options = {"batch_size": 8, "verbose": 0, **options}
    history = model.fit(*rows(count), epochs=epochs, callbacks=[throughput], **options)
    return history.history


def test_several_steps_in_one_call():
    model = model_of(steps_per_execution=2)
    history = fit(model, 48, Throughput(skip_steps=1), epochs=2)

    # Keras announces three calls of two steps; the first of them holds what is skipped.
    assert history[ALL_RANKS] == [32 / 2, 32 / 2]


def test_validation_changes_neither_examples_nor_time(clock):
    class SlowValidation(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            next(clock)

    history = model_of().fit(
        *rows(44),
        batch_size=8,
        epochs=2,
        verbose=0,
        validation_data=rows(100),
        callbacks=[Throughput(skip_steps=2), SlowValidation()],
    )

    assert history.history[ALL_RANKS] == [28 / 4, 36 / 5]
    assert "val_loss" in history.history


# Several ranks: a strategy of tfdist has the attribute `collective`. That the rates are
# those of all ranks, in every unit, is in tests/distributed/test_callbacks.py.


class Collective:
    """What `Throughput` needs of a collective; the peers' answers are given."""

    def __init__(self, rank, *peers):
        self.rank, self.size, self.peers = rank, len(peers) + 1, peers

    def exchange(self, name, value):
        everyone = [[list(peer), None] for peer in self.peers]
        return [*everyone[: self.rank], value, *everyone[self.rank :]]


def strategy_with(collective):
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    strategy.collective = collective
    return strategy


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_chief_says_once_why_nothing_was_measured(rank, capsys):
    collective = Collective(rank, (0.0, 0.0, 2, 0.0))
    model = model_of(strategy=strategy_with(collective))
    history = fit(model, 16, Throughput(skip_steps=2))

    assert math.isnan(history[ALL_RANKS][0])
    text = (
        "tfdist: Throughput has not measured this epoch, because all its steps are "
        "among the first of a fit, which it leaves out: skip_steps=0 counts them.\n"
    )
    assert capsys.readouterr() == ("", "" if rank else text)


# The file for `tfdist report`.


def test_a_given_number_of_examples_serves_every_model(tmp_path):
    throughput = Throughput(examples_per_step=24, json=tmp_path / "one.json")
    history = fit(model_of(CountsSteps), 44, throughput)

    # A short last batch counts as a full one.
    assert history[ALL_RANKS] == [24.0]
    assert read_run(tmp_path / "one.json").global_batch_size == 24


def test_the_file_has_a_rate_for_each_epoch(tmp_path):
    throughput = Throughput(
        skip_steps=2,
        units_per_example={"tokens": 512},
        json=tmp_path / "new" / "a.json",
    )
    model = model_of()
    fit(model, 44, throughput, epochs=2)

    run = read_run(tmp_path / "new" / "a.json")
    assert run.processes == 1
    assert run.epochs == (EpochRate(28 / 4, 2), EpochRate(36 / 5, 1))
    # Not 7, as it would be with the short last batch.
    assert run.global_batch_size == 8
    assert run.model == model.name
    assert run.units_per_example == {"tokens": 512}


def test_a_count_that_lags_does_not_tell_the_global_batch(tmp_path, monkeypatch):
    # As of parameter servers, where the steps so far need not have arrived.
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    strategy.workers = 2
    monkeypatch.setattr(ranks, "ParameterServerStrategy", type(strategy))
    fit(model_of(strategy=strategy), 44, Throughput(json=tmp_path / "two.json"))

    run = read_run(tmp_path / "two.json")
    assert (run.processes, run.global_batch_size) == (2, None)


def test_a_file_that_cannot_be_written_shows_before_training(tmp_path):
    (tmp_path / "file").touch()
    seen = []
    throughput = Throughput(json=tmp_path / "file" / "one.json")
    throughput.on_epoch_begin = lambda *arguments: seen.append(arguments)

    with pytest.raises(OSError, match="file"):
        fit(model_of(), 44, throughput)

    assert seen == []


# Models with steps of their own.


class CountsSteps(keras.Model):
    """The usual custom step: a mean of one loss per step."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, data):
        self.tracker.update_state(keras.ops.mean(data[0]))
        return {"loss": self.tracker.result()}


@pytest.mark.parametrize("skip_steps", [0, 2])
def test_a_model_that_does_not_count_its_examples_is_refused(skip_steps):
    with pytest.raises(
        ValueError,
        match=r"^examples_per_step must be given for a model whose train_step or "
        r"metrics do not count its examples\. Received: examples_per_step=None, and a "
        r"mean loss of weight \d after \d steps of '\w+'\. "
        r"Pass the global batch size: Throughput\(examples_per_step=64\)\.$",
    ):
        fit(model_of(CountsSteps), 44, Throughput(skip_steps=skip_steps))


# Arguments.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            (
                {"skip_steps": steps},
                r"skip_steps must be a whole number and not negative\. Received: "
                rf"skip_steps={steps!r}\. Use 0 to count every step\.$",
            )
            for steps in (-1, 1.5)
        ),
        (
            {"examples_per_step": 0},
            r"examples_per_step must be positive\. Received: examples_per_step=0\. "
            r"Leave it out if it is not known\.$",
        ),
        (
            {"units_per_example": {"tokens": -1.5}},
            r"units_per_example must hold positive numbers by names other than "
            r"'examples'\. Received: 'tokens': -1\.5\. Give the number per example, as "
            r"in \{'tokens': 512\}\.$",
        ),
        ({"units_per_example": {"examples": 2}}, "units_per_example must hold"),
        (
            {"alone_examples_per_second": math.nan},
            r"alone_examples_per_second must be positive\. Received: "
            r"alone_examples_per_second=nan\. Leave it out",
        ),
    ],
)
def test_wrong_arguments_are_refused_at_once(options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        Throughput(**options)


def test_files_of_the_launcher(tmp_path, monkeypatch):
    epochs, prometheus = tmp_path / "epochs.json", tmp_path / "run.prom"
    monkeypatch.setenv("TFDIST_METRICS_JSON", str(epochs))
    monkeypatch.setenv("TFDIST_METRICS_FILE", str(prometheus))
    model, throughput = model_of(), Throughput(skip_steps=1)
    for _ in range(2):
        history = fit(model, 44, throughput, epochs=2, validation_split=0.5)

    lines = [json.loads(line) for line in epochs.read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 1, 2]
    # Of 22 rows a step of 8 and one of 6 count, a second each.
    assert {line["examples_per_second"] for line in lines} == {14 / 2}
    assert {line["step_seconds"] for line in lines} == {1}
    assert [line["logs"]["val_loss"] for line in lines[2:]] == history["val_loss"]
    assert 'tfdist_step_seconds{run="run"} 1.0\n' in prometheus.read_text()


def test_a_disk_that_fills_up_does_not_end_the_training(tmp_path, monkeypatch):
    epochs = tmp_path / "folder" / "epochs.json"
    monkeypatch.setenv("TFDIST_METRICS_JSON", str(epochs))
    epochs.parent.mkdir()

    class Removes(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            epochs.unlink(missing_ok=True)
            epochs.parent.rmdir()

    with pytest.warns(UserWarning, match="The metrics of epoch 1 are not written: "):
        model_of().fit(
            *rows(8), verbose=0, callbacks=[Throughput(skip_steps=0), Removes()]
        )
