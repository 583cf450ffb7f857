"""Files are written by the chief alone, whole or not at all, whatever the format."""

import io
import os
import zipfile

import keras
import numpy as np
import pytest
from keras.src.saving import saving_lib
from packaging.version import Version

from tfdist.compat.keras.install import install
from tfdist.strategies import AllReduceStrategy

SAVERS = {
    "model.keras": lambda model, path: model.save(path),
    "model.h5": lambda model, path: model.save(path),
    "model.weights.h5": lambda model, path: model.save_weights(path),
}


class Failing(keras.layers.Dense):
    """A layer that cannot be written any more from some time on."""

    fails = False

    def get_config(self):
        if self.fails:
            raise OSError("no space left")
        return super().get_config()

    def save_own_variables(self, store):
        super().save_own_variables(store)
        if self.fails:
            raise OSError("no space left")


def model_under(strategy):
    with strategy.scope():
        return keras.Sequential([keras.Input((3,)), Failing(2)])


@pytest.fixture
def model():
    install(is_alone=True)
    return model_under(AllReduceStrategy())


@pytest.mark.parametrize("name", SAVERS)
def test_a_file_is_put_in_place_when_it_is_on_disk(name, model, synced, tmp_path):
    path = tmp_path / name

    SAVERS[name](model, path)

    assert [path for path, _ in synced] == [tmp_path / f".{os.getpid()}.{name}"]
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", SAVERS)
def test_a_file_that_fails_leaves_the_old_one(name, model, tmp_path):
    path = tmp_path / name
    SAVERS[name](model, path)
    before = path.read_bytes()

    model.layers[0].kernel.assign(np.ones((3, 2)))
    model.layers[0].fails = True
    with pytest.raises(OSError, match="no space left"):
        SAVERS[name](model, path)

    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_each_rank_writes_to_memory_of_its_own(twin):
    memory = io.BytesIO()

    saving_lib.save_model(model_under(twin(1)), memory)

    assert zipfile.is_zipfile(memory)


@pytest.mark.parametrize("name", SAVERS)
def test_a_file_that_the_chief_does_not_write_is_named(name, twin, tmp_path):
    strategy = twin(1)
    strategy.collective.chief_writes = False
    model = model_under(strategy)

    with pytest.warns(
        UserWarning,
        match=r"^Only the chief writes files, and it has not written this one\. "
        rf"Received: '\S*{name}', saved by rank 1 alone\. Save on every rank, or on "
        r"the chief\.$",
    ):
        SAVERS[name](model, tmp_path / name)


LOADERS = {
    "model.keras": lambda model, path: keras.models.load_model(path),
    "model.h5": lambda model, path: keras.saving.load_model(str(path)),
    "model.weights.h5": lambda model, path: model.load_weights(path),
}


@pytest.mark.skipif(
    Version(keras.__version__) < Version("3.13"),
    reason="older versions say themselves that a .keras file is missing",
)
@pytest.mark.parametrize("kind", [FileNotFoundError, ValueError])
@pytest.mark.parametrize("name", LOADERS)
def test_a_missing_file_of_several_ranks_names_the_remedy(
    name, kind, model, tmp_path, be_one_of_two
):
    be_one_of_two(1)

    with pytest.raises(
        kind,
        match=rf"^There is no such file\. Received: '\S*{name}', in a job of 2 "
        r"processes\. Check the path\. If this program saves the file, call "
        r"model\.save on every rank, not after `if tfdist\.is_chief\(\)`: only the "
        r"chief writes, and the others wait for it\. Ranks on several hosts need a "
        r"folder that all of them share\.$",
    ):
        LOADERS[name](model, tmp_path / name)


@pytest.mark.skipif(
    Version(keras.__version__) < Version("3.10"),
    reason="Keras writes weights into several files from 3.10 on",
)
def test_several_files_are_written_by_keras(model, synced, tmp_path):
    model.save(tmp_path / "folder", zipped=False)
    model.save_weights(tmp_path / "model.weights.json", max_shard_size=1.0)

    assert synced == []
    assert (tmp_path / "folder" / "config.json").exists()
    assert (tmp_path / "model.weights.json").exists()


@pytest.mark.parametrize("name", SAVERS)
def test_plain_keras_writes_as_before(name, synced, tmp_path):
    install(is_alone=True)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])

    SAVERS[name](model, tmp_path / name)

    assert synced == []
    assert [file.name for file in tmp_path.iterdir()] == [name]
