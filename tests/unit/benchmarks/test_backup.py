"""The epochs of one process, with a turn that only notes what happens."""

import pytest

from tfdist.benchmarks import backup as backup_module
from tfdist.benchmarks.backup import measure


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Leave out most of the images."""
    digits = backup_module.make_digits
    monkeypatch.setattr(
        backup_module, "make_digits", lambda batch_size: digits(batch_size).take(4)
    )


@pytest.mark.parametrize(
    ("backup", "save_freq", "saved", "on_disk"),
    [
        (None, "epoch", 0, 0),
        ("tfdist", "epoch", 4, 4),
        ("tfdist", 2, 8, 8),
        ("keras", "epoch", 4, 0),
    ],
)
def test_the_turn_that_compiles_is_left_out(backup, save_freq, saved, on_disk, turn):
    report = measure(
        turn, backup=backup, save_freq=save_freq, batch_size=8, epochs=2, repeats=2
    )

    assert [len(seconds) for seconds in report["turns"]] == [1, 1]
    assert min(min(seconds) for seconds in report["turns"]) > 0
    saves = report["saves"]
    assert len(saves["hold_seconds"]) == saved
    assert len(saves["disk_seconds"]) == len(saves["bytes"]) == on_disk
    # Then it waits for the others before it clears up.
    assert turn.events == [*["take", "pass on"] * 3, "take"]
