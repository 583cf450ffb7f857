"""The file of a run, written by a process that has trained."""

import json
import os
from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

import tfdist
from tfdist.callbacks.run_file import counts_lag, processes_of, write_run
from tfdist.scaling import EpochRate, read_run

EPOCHS = [EpochRate(None, 2), EpochRate(100.0, 1)]


def trained(**strategy):
    """Return what is known of a model in training."""
    strategy = SimpleNamespace(**{"num_replicas_in_sync": 1, **strategy})
    return SimpleNamespace(name="digits", distribute_strategy=strategy)


def write(path):
    options = {"processes": 2, "global_batch_size": 64, "units_per_example": {"a": 8}}
    write_run(path, trained(), EPOCHS, **options)


def test_what_it_says(tmp_path):
    write(tmp_path / "run.json")

    run = read_run(tmp_path / "run.json")
    assert run.epochs == tuple(EPOCHS)
    assert (run.processes, run.model, run.global_batch_size) == (2, "digits", 64)
    assert run.units_per_example == {"a": 8}
    assert run.versions == {
        "tfdist": tfdist.__version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
    }
    # What a strict reader of JSON takes, too.
    assert "NaN" not in (tmp_path / "run.json").read_text()


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    (tmp_path / "run.json").write_text(json.dumps("old"))

    def fail(descriptor):
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="the disk is full"):
        write(tmp_path / "run.json")

    assert json.loads((tmp_path / "run.json").read_text()) == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ({}, 1),
        ({"collective": SimpleNamespace(size=3)}, 3),
        # With parameter servers the chief, which calls `fit`, does not train.
        ({"workers": 2}, 2),
        # TensorFlow's own: devices of one process, or of several.
        ({"num_replicas_in_sync": 8}, 8),
    ],
)
def test_who_trains(strategy, expected):
    assert processes_of(trained(**strategy)) == expected


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ({}, False),
        ({"collective": SimpleNamespace(size=3)}, False),
        ({"workers": 2}, True),
    ],
)
def test_only_with_parameter_servers_the_counts_lag(strategy, expected):
    assert counts_lag(trained(**strategy)) == expected
