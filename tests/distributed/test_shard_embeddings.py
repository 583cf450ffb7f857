"""Files, backups and memory of embeddings of which each rank has some rows."""

from pathlib import Path

import numpy as np
import pytest
from test_shard_optimizer import memory

import tfdist

TOKENS, WIDTH, ROWS, BATCH = 41, 8, 64, 16
LARGE_ROWS, LARGE_WIDTH = 1 << 18, 128
LARGE_BYTES = 4 * LARGE_ROWS * LARGE_WIDTH


def compiled():
    import keras

    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            layers.Embedding(TOKENS, WIDTH),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )
    optimizer = keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.5)
    model.compile(optimizer, keras.losses.MeanSquaredError(), jit_compile=False)
    return model


def fitted(model, *callbacks, epochs):
    random = np.random.default_rng(3)
    x, y = random.integers(0, TOKENS, (ROWS, 4)), random.normal(size=(ROWS, 1))
    model.fit(x, y, BATCH, epochs, verbose=0, shuffle=False, callbacks=[*callbacks])
    return model


def trained(strategy, *callbacks, epochs=2):
    """Train a model under a strategy, or without one."""
    import keras

    keras.backend.clear_session()
    if strategy is None:
        return fitted(compiled(), *callbacks, epochs=epochs)
    with strategy.scope():
        model = compiled()
    return fitted(model, *callbacks, epochs=epochs)


def dividing():
    return tfdist.strategies.AllReduceStrategy(shard_embeddings=TOKENS * WIDTH * 4)


def backup_in(folder):
    return tfdist.callbacks.BackupAndRestore(
        folder / "backup", save_freq=3, delete_checkpoint=False
    )


def save_in_every_way(folder):
    """Train and save in every way, all ranks together."""
    strategy = dividing()
    checkpoint = tfdist.callbacks.ModelCheckpoint(f"{folder}/epoch.keras")
    model = trained(strategy, backup_in(folder), checkpoint, epochs=1)
    model.save(f"{folder}/model.keras")
    # Last: files that Keras saves after it say nothing of how to compile the model.
    model.save(f"{folder}/model.h5")
    strategy.collective.barrier()


def resume(folder):
    """Continue from the backup and from a file of two ranks, on other ranks."""
    import keras

    strategy = dividing()
    folder_of_rank = folder / f"of {tfdist.size()}"
    if tfdist.is_chief():
        folder_of_rank.mkdir()
    strategy.collective.barrier()
    trained(strategy, backup_in(folder)).save(folder_of_rank / "backup.keras")
    with strategy.scope():
        model = keras.models.load_model(folder / "epoch.keras")
    fitted(model, epochs=1).save(folder_of_rank / "file.keras")
    strategy.collective.barrier()


def values_in(path):
    """Return the weights and the optimizer's variables in a file, by plain Keras."""
    import keras

    return values_of(keras.models.load_model(path))


def arrays_in(path):
    """Return what an HDF5 file has; Keras does not load all of it."""
    import h5py

    found = []
    with h5py.File(path) as file:
        file.visititems(
            lambda _, it: found.append(it[()]) if isinstance(it, h5py.Dataset) else None
        )
    return found


def values_of(model):
    variables = [*model.weights, *model.optimizer.variables]
    return [np.array(variable) for variable in variables]


def check_equal(values, right):
    for mine, its in zip(values, right, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder that two ranks have filled."""
    folder = tmp_path_factory.mktemp("divided")
    tfdist.testing.cluster(
        save_in_every_way, args=(folder,), timeout_seconds=1200, collective="mpi"
    )
    return folder


@pytest.fixture(scope="module")
def plain():
    """The model that plain Keras has trained."""
    return trained(None, epochs=1)


@pytest.mark.parametrize(
    "name",
    [
        "epoch.keras",
        pytest.param("model.h5", marks=pytest.mark.slow),
        "model.keras",
    ],
)
def test_files_are_those_of_plain_keras(saved, plain, name, tmp_path):
    if name == "epoch.keras":
        # Before the averages replace the weights.
        assert len(values_in(saved / name)) == len(values_of(plain))
    elif name == "model.h5":
        plain.save(tmp_path / name)
        check_equal(arrays_in(saved / name), arrays_in(tmp_path / name))
    else:
        check_equal(values_in(saved / name), values_of(plain))


@pytest.mark.slow
def test_other_numbers_of_ranks_continue_from_backups_and_files(saved):
    tfdist.testing.cluster(resume, size=3, args=(saved,), timeout_seconds=1200)

    uninterrupted = values_of(trained(None))
    check_equal(values_in(saved / "of 3" / "backup.keras"), uninterrupted)
    check_equal(values_of(trained(None, backup_in(saved))), uninterrupted)
    import keras

    model = keras.models.load_model(saved / "epoch.keras")
    right = values_of(fitted(model, epochs=1))
    check_equal(values_in(saved / "of 3" / "file.keras"), right)


def bytes_of_large_table(folder):
    """Return what a table and its optimizer keep on a rank, and a save adds."""
    import keras

    strategy = dividing()
    before = memory("VmRSS")
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                keras.layers.Embedding(LARGE_ROWS, LARGE_WIDTH),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(tfdist.optimizers.LazyAdam(), "mse", jit_compile=False)
    x = np.arange(32).reshape(8, 4) * 1000
    model.fit(x, np.ones((8, 1)), 8, verbose=0)
    kept = memory("VmRSS") - before
    path = f"{folder}/large.weights.h5"
    added = {}
    for how in (model.save_weights, model.load_weights):
        # The peak begins again with what is resident now.
        Path("/proc/self/clear_refs").write_text("5")
        resident = memory("VmRSS")
        how(path)
        strategy.collective.barrier()
        added[how.__name__] = memory("VmHWM") - resident
    return {"kept": kept, **added}


@pytest.mark.slow
def test_no_rank_has_the_whole_table_in_memory(tmp_path):
    ranks = tfdist.testing.cluster(
        bytes_of_large_table, args=(tmp_path,), timeout_seconds=1200, collective="mpi"
    ).values
    part = LARGE_BYTES / 2
    for found in ranks:
        # The table and two variables of Adam.
        assert found["kept"] < 3 * LARGE_BYTES
        assert found["save_weights"] < 1.2 * part
        # An array, a tensor and a new value of the part, and nothing of the other.
        assert found["load_weights"] < 4 * part
