"""Files are written by the chief alone, whole or not at all, whatever the format."""

import os

import keras
import numpy as np
import pytest
from packaging.version import Version

from tfdist.compat.keras import install
from tfdist.strategies import AllReduceStrategy

SAVERS = {
    "model.keras": lambda model, path: model.save(path),
    "model.h5": lambda model, path: model.save(path),
    "model.weights.h5": lambda model, path: model.save_weights(path),
}


@pytest.fixture
def model():
    install(is_alone=True)
    with AllReduceStrategy().scope():
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


@pytest.fixture
def replaced(monkeypatch):
    """Return the paths of files that were on disk before they were put in place."""
    moved = []
    original = os.fsync

    def fsync(descriptor):
        moved.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return moved


@pytest.mark.parametrize("name", SAVERS)
def test_a_file_is_put_in_place_when_it_is_on_disk(name, model, replaced, tmp_path):
    path = tmp_path / name

    SAVERS[name](model, path)

    assert replaced == [str(tmp_path / f".{os.getpid()}.{name}")]
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", SAVERS)
def test_a_file_that_fails_leaves_the_old_one(name, model, monkeypatch, tmp_path):
    path = tmp_path / name
    SAVERS[name](model, path)
    before = path.read_bytes()

    def fail(descriptor):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    model.layers[0].kernel.assign(np.ones((3, 2)))
    with pytest.raises(OSError, match="no space left"):
        SAVERS[name](model, path)

    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", SAVERS)
def test_only_the_chief_writes(name, twin, tmp_path):
    with twin(1).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])

    SAVERS[name](model, tmp_path / name)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(
    Version(keras.__version__) < Version("3.10"),
    reason="Keras writes weights into several files from 3.10 on",
)
def test_several_files_are_written_by_keras(model, replaced, tmp_path):
    model.save(tmp_path / "folder", zipped=False)
    model.save_weights(tmp_path / "model.weights.json", max_shard_size=1.0)

    assert replaced == []
    assert (tmp_path / "folder" / "config.json").exists()
    assert (tmp_path / "model.weights.json").exists()


@pytest.mark.parametrize("name", SAVERS)
def test_plain_keras_writes_as_before(name, replaced, tmp_path):
    install(is_alone=True)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])

    SAVERS[name](model, tmp_path / name)

    assert replaced == []
    assert [file.name for file in tmp_path.iterdir()] == [name]
