from types import SimpleNamespace

import keras
import pytest

from tfdist.compat.keras import writers
from tfdist.compat.keras.writers import of_this_rank


class OwnLogger(keras.callbacks.CSVLogger):
    """A user's own."""


@pytest.fixture
def given(tmp_path, monkeypatch):
    """Callbacks that write, and some that do not."""
    monkeypatch.setattr(writers, "_SAID", set())
    log = str(tmp_path / "log.csv")
    return [
        keras.callbacks.CSVLogger(log),
        keras.callbacks.EarlyStopping(),
        keras.callbacks.TensorBoard(str(tmp_path)),
        keras.callbacks.ModelCheckpoint(str(tmp_path / "model.keras")),
        keras.callbacks.BackupAndRestore(str(tmp_path / "backup")),
        OwnLogger(log),
    ]


def on_rank(rank):
    return SimpleNamespace(rank=rank)


def test_other_ranks_have_none_that_write(given):
    kinds = [type(one).__name__ for one in of_this_rank(given, on_rank(1))]

    assert kinds == ["EarlyStopping", "ModelCheckpoint", "OwnLogger"]


def test_the_chief_has_all_and_says_so_once(given, capsys):
    assert of_this_rank(given, on_rank(0)) == given
    assert of_this_rank(given, on_rank(0)) == given
    assert capsys.readouterr().err == (
        "tfdist: only the chief has BackupAndRestore, CSVLogger, TensorBoard.\n"
    )


def test_where_nobody_writes_nothing_is_said(given, capsys):
    assert of_this_rank(given[1:2], on_rank(0)) == given[1:2]
    assert capsys.readouterr().err == ""


def test_keras_still_has_those_that_are_known():
    names = {one.__name__ for one in writers._WRITERS}

    assert {"BackupAndRestore", "CSVLogger", "RemoteMonitor", "TensorBoard"} <= names
