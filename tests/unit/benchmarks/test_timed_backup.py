"""What is noted of states, with a clock of our own."""

import keras
import numpy as np
import pytest

from tfdist.benchmarks import timed_backup
from tfdist.benchmarks.timed_backup import Saves, TimedBackup


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that stands still."""
    now = [0.0]
    monkeypatch.setattr(timed_backup, "perf_counter", lambda: now[0])
    return now


def test_a_state_goes_to_disk_after_it_held_the_training_up(clock):
    saves = Saves()

    def work(seconds, *, more):
        clock[0] += seconds + more

    save = saves.timed(work)
    save(1.0, more=0.5)
    clock[0] += 1.0
    saves.written(100)
    save(2.0, more=0.0)
    saves.written(200)

    assert saves.report() == {
        "hold_seconds": [1.5, 2.0],
        "disk_seconds": [2.5, 2.0],
        "bytes": [100, 200],
    }


def test_states_that_are_forgotten(clock):
    saves = Saves()
    saves.timed(lambda: None)()
    saves.written(100)

    saves.clear()

    assert saves.report() == {"hold_seconds": [], "disk_seconds": [], "bytes": []}


def test_who_writes_nothing_is_held_up_all_the_same(clock):
    saves = Saves()
    saves.timed(lambda: None)()

    assert saves.report() == {
        "hold_seconds": [0.0],
        "disk_seconds": [],
        "bytes": [],
    }


@pytest.mark.parametrize(("save_freq", "count"), [("epoch", 3), (2, 6)])
def test_each_state_of_a_fit_is_noted(tmp_path, save_freq, count):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = np.ones((16, 2), np.float32)
    saves = Saves()
    backup = TimedBackup(str(tmp_path / "states"), save_freq, saves)

    model.fit(rows, rows[:, :1], 4, epochs=3, verbose=0, callbacks=[backup])

    backup.settle()
    noted = saves.report()
    assert {name: len(values) for name, values in noted.items()} == dict.fromkeys(
        ("hold_seconds", "disk_seconds", "bytes"), count
    )
    assert min(noted["hold_seconds"]) > 0
    assert min(noted["bytes"]) > 3 * 4
