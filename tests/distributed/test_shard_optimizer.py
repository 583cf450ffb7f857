"""Optimizers whose variables only the owners of weights keep, between processes."""

import contextlib
import hashlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import tfdist

ROWS, BATCH = 101, 16
LARGE_BYTES = 128 << 20


def data():
    random = np.random.default_rng(3)
    x = random.normal(size=(ROWS, 8)).astype("float32")
    return x, x[:, :1] + x[:, 1:2] ** 2


def adam():
    import keras

    return keras.optimizers.Adam(0.01, global_clipnorm=0.5, weight_decay=0.1)


def compiled():
    """Make a model with a weight of odd rows, larger than the others together."""
    import keras

    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(33, "tanh"),
            layers.Dense(96, "relu"),
            layers.Dense(5),
            layers.Dense(1),
        ]
    )
    model.compile(adam(), keras.losses.MeanSquaredError(), jit_compile=False)
    return model


def trained(strategy, *callbacks, epochs=2):
    """Train a model under a strategy, or without one."""
    import keras

    keras.backend.clear_session()
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        model = compiled()
    fitted(model, *callbacks, epochs=epochs)
    return model


def fitted(model, *callbacks, epochs):
    x, y = data()
    model.fit(x, y, BATCH, epochs, verbose=0, shuffle=False, callbacks=list(callbacks))


def bits_of(arrays):
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.asarray(array).tobytes())
    return digest.hexdigest()


def in_file(path, *, weights_only=False):
    """Return the bits of the optimizer's variables in a file, by plain Keras."""
    import keras

    if weights_only:
        model = compiled()
        model.optimizer.build(model.trainable_variables)
        model.load_weights(path)
    else:
        model = keras.models.load_model(path)
    assert isinstance(model.optimizer, keras.optimizers.Adam)
    return bits_of(model.optimizer.variables)


def save_in_ways(model, folder, names):
    """Save a model by calls and by callbacks, all ranks together."""
    import keras

    best = {"monitor": "loss", "save_best_only": True, "save_weights_only": True}
    checkpoints = {
        "keras.keras": keras.callbacks.ModelCheckpoint,
        "best.weights.h5": partial(tfdist.callbacks.ModelCheckpoint, **best),
    }
    if "model.keras" in names:
        model.save(f"{folder}/model.keras")
    chosen = [name for name in checkpoints if name in names]
    callbacks = [checkpoints[name](f"{folder}/{name}") for name in chosen]
    fitted(model, *callbacks, epochs=1)
    # Last: files that Keras saves after it say nothing of how to compile the model.
    if "model.h5" in names:
        model.save(f"{folder}/model.h5")


def shard(folder, names):
    """Train and save with and without owners; return what differs, and sizes."""
    first = tfdist.strategies.AllReduceStrategy(shard_optimizer=True)
    collective = first.collective

    def strategy(is_sharded):
        return tfdist.strategies.AllReduceStrategy(
            collective, shard_optimizer=is_sharded, check_first_step="off"
        )

    found = {}
    for name, is_sharded in (("sharded", True), ("whole", False)):
        model = trained(strategy(is_sharded))
        found[f"{name} bits"] = bits_of(model.get_weights())
        kept = [v._value for v in model.optimizer.variables if v._value is not None]
        found[f"{name} bytes"] = sum(value.numpy().nbytes for value in kept)
        (own := folder / name).mkdir(exist_ok=True)
        save_in_ways(model, own, names)
    collective.barrier()
    return found


def back_up(folder):
    """Leave the backup of an epoch."""
    strategy = tfdist.strategies.AllReduceStrategy(
        shard_optimizer=True, check_first_step="off"
    )
    backup = tfdist.callbacks.BackupAndRestore(
        folder / "backup", save_freq=5, delete_checkpoint=False
    )
    trained(strategy, backup, epochs=1)


def resume(folder):
    """Go on from the files of two ranks, on other ranks."""
    import keras

    strategy = tfdist.strategies.AllReduceStrategy(shard_optimizer=True)
    with strategy.scope():
        model = keras.models.load_model(folder / "sharded" / "model.keras")
    fitted(model, epochs=1)
    backup = tfdist.callbacks.BackupAndRestore(
        folder / "backup", delete_checkpoint=False
    )
    return {
        "file": model.get_weights(),
        "backup": trained(strategy, backup).get_weights(),
    }


@pytest.fixture(scope="module")
def sharded(tmp_path_factory, asked):
    """The folder that two ranks have filled, and what each found.

    The rows of `test_equality_shard_optimizer.py` run on every engine.
    """
    folder = tmp_path_factory.mktemp("sharded")
    ranks = tfdist.testing.cluster(
        shard, args=(folder, asked), timeout_seconds=1200
    ).values
    return folder, ranks


def test_weights_have_the_bits_of_a_whole_optimizer(sharded):
    _, ranks = sharded
    assert len({f[f"{n} bits"] for f in ranks for n in ("sharded", "whole")}) == 1


def test_each_rank_keeps_about_half(sharded):
    _, ranks = sharded
    whole = ranks[0]["whole bytes"]

    for found in ranks:
        assert 0.45 * whole < found["sharded bytes"] < 0.55 * whole
        assert found["whole bytes"] == whole
    # The counter of steps and the learning rate are on both.
    assert sum(found["sharded bytes"] for found in ranks) == whole + 12


@pytest.mark.parametrize(
    "name",
    [
        "model.keras",
        pytest.param("model.h5", marks=pytest.mark.slow),
        pytest.param("keras.keras", marks=pytest.mark.slow),
        "best.weights.h5",
    ],
)
def test_files_are_those_of_a_whole_optimizer_and_load_in_plain_keras(sharded, name):
    folder, _ = sharded
    is_weights = name.endswith(".weights.h5")

    with_owners = in_file(folder / "sharded" / name, weights_only=is_weights)
    assert with_owners == in_file(folder / "whole" / name, weights_only=is_weights)


@pytest.fixture(scope="module")
def resumed(sharded):
    """The folder, and the weights of three ranks that have gone on from its files."""
    folder, _ = sharded
    tfdist.testing.cluster(back_up, args=(folder,), timeout_seconds=1200)
    ranks = tfdist.testing.cluster(
        resume, size=3, args=(folder,), timeout_seconds=1200
    ).values
    return folder, ranks


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.keras"])
def test_another_number_of_ranks_goes_on_from_a_file(resumed, name):
    import keras

    folder, ranks = resumed
    model = keras.models.load_model(folder / "sharded" / name)
    fitted(model, epochs=1)
    for found in ranks:
        for mine, right in zip(found["file"], model.get_weights(), strict=True):
            np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_another_number_of_ranks_and_plain_keras_go_on_from_a_backup(resumed):
    folder, ranks = resumed
    right = trained(None).get_weights()
    backup = tfdist.callbacks.BackupAndRestore(
        folder / "backup", delete_checkpoint=False
    )
    plain = trained(None, backup).get_weights()
    for weights in (plain, *(found["backup"] for found in ranks)):
        for mine, its in zip(weights, right, strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-4, atol=1e-6)


def save_alone(how, folder):
    """Save where only the chief comes."""
    import keras

    strategy = tfdist.strategies.AllReduceStrategy(shard_optimizer=True)
    checkpoint = keras.callbacks.ModelCheckpoint(f"{folder}/alone.keras")
    callbacks = [tfdist.callbacks.RankZero(checkpoint)] if how == "RankZero" else []
    model = trained(strategy, *callbacks, epochs=1)
    if tfdist.is_chief():
        model.save(f"{folder}/alone.keras")
    if how == "fit":
        fitted(model, epochs=1)


@pytest.mark.slow
@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    ("how", "error"),
    [
        (
            "RankZero",
            "With shard_optimizer or shard_embeddings, all ranks must save a model "
            "together. "
            "Received: the model 'sequential', saved by a callback that only the chief "
            "runs. Give fit tfdist.callbacks.ModelCheckpoint or BackupAndRestore, "
            "without RankZero.",
        ),
        ("fit", "is in the exchange of a save by every rank, which "),
        ("end", "wait for it in a save by every rank, which sharding needs"),
    ],
)
def test_a_chief_that_saves_alone_is_refused_without_a_hang(tmp_path, how, error):
    result = tfdist.testing.cluster(
        save_alone, args=(how, tmp_path), timeout_seconds=1200, check=False
    )

    assert error in result.errors[0].message
    # After a hang, no rank would have failed first.
    assert result.failed_rank is not None
    assert not list(tmp_path.iterdir())


def memory(name):
    """Return a number of bytes from the status of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


def bytes_of_a_save(folder):
    """Return the bytes that saving a model with a large weight adds."""
    import keras

    with tfdist.strategies.AllReduceStrategy(shard_optimizer=True).scope():
        layers = [keras.layers.Dense(LARGE_BYTES // 4096), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((1024,)), *layers])
        model.compile("adam", "mse", jit_compile=False)
    x = np.ones((4, 1024), "float32")
    model.fit(x, x[:, :1], batch_size=4, verbose=0)
    added = []
    for _ in range(3):
        # The peak begins again with what is resident now.
        Path("/proc/self/clear_refs").write_text("5")
        before = memory("VmRSS")
        model.save(f"{folder}/large.keras")
        added.append(memory("VmHWM") - before)
    # Other threads may take some, too.
    return min(added)


@pytest.mark.slow
def test_a_save_adds_little_more_than_the_largest_weight(tmp_path):
    # Each rank keeps half of the rows of its variables in the optimizer.
    chief, other = tfdist.testing.cluster(
        bytes_of_a_save, args=(tmp_path,), timeout_seconds=1200
    ).values

    assert chief < 1.2 * LARGE_BYTES
    assert other < LARGE_BYTES / 2
