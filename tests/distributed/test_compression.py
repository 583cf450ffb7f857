"""Gradients that travel in two bytes an element, between real processes."""

import hashlib
import tempfile

import numpy as np
import pytest

import tfdist

NAMES = ["none", "fp16", "bf16"]
BITS = {"none": 24, "fp16": 11, "bf16": 8}
LARGEST = 65504.0


def bits_of(arrays):
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.asarray(array).tobytes())
    return digest.hexdigest()


def trained(strategy):
    """Train a model of Keras with a dense, a sparse and an accumulated gradient."""
    import keras

    random = np.random.default_rng(5)
    words = random.integers(0, 40, (96, 6))
    labels = (words.sum(1) % 2).astype("float32")
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((6,), dtype="int32"),
                keras.layers.Embedding(40, 8),
                keras.layers.Flatten(),
                keras.layers.Dense(16, "tanh"),
                keras.layers.Dense(1),
            ]
        )
        optimizer = keras.optimizers.SGD(
            0.1, momentum=0.9, gradient_accumulation_steps=2
        )
        model.compile(optimizer, "mse")
    # The last batch is short, so that the ranks' shares differ.
    model.fit(words, labels, batch_size=20, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


def summed(strategy, gradient, optimizer):
    """Apply a gradient in a custom loop, and return what a variable of 0 becomes."""
    import tensorflow as tf

    with strategy.scope():
        variable = tf.Variable(tf.zeros([3]))
        optimizer.build([variable])

    @tf.function
    def step():
        strategy.run(lambda: optimizer.apply_gradients([(gradient, variable)]))

    step()
    return variable.numpy().tolist()


def custom_loops(strategy):
    """Sum gradients that are no shares of a mean."""
    import keras
    import tensorflow as tf

    own = 1.0 + tfdist.rank()
    with strategy.scope():
        plain = keras.optimizers.SGD(1.0)
        scaled = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(1.0), initial_scale=1024.0
        )
    too_large = tf.constant([1e6, -1e6, own])
    return {
        "largest": summed(strategy, tf.fill([3], LARGEST), plain),
        "skipped": summed(strategy, too_large, scaled),
        "scale": float(scaled.dynamic_scale),
    }


def resumed(collective, folder):
    """Train with PowerSGD, whole and from a backup; return the bits and the sizes."""
    import keras

    inputs = np.random.default_rng(6).normal(size=(96, 300))
    labels = inputs[:, :1] * 2

    def train(name, epochs):
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)
        strategy = tfdist.strategies.AllReduceStrategy(
            collective, compression="powersgd", check_first_step="off"
        )
        with strategy.scope():
            model = keras.Sequential(
                [keras.Input((300,)), keras.layers.Dense(120), keras.layers.Dense(1)]
            )
            model.compile(keras.optimizers.SGD(0.003, momentum=0.5), "mse")
            backup = tfdist.callbacks.BackupAndRestore(
                f"{folder}/{name}", save_freq=4, delete_checkpoint=False
            )
        history = model.fit(inputs, labels, 20, epochs, verbose=0, callbacks=[backup])
        return bits_of(model.get_weights()), history.history["loss"]

    whole, losses = train("whole", 4)
    train("parts", 2)
    parts, _ = train("parts", 4)
    return {"whole": whole, "parts": parts, "losses": losses}


def compress():
    """Make all checks in this process, and return what was found."""
    found = {}
    collective = None
    for name in NAMES:
        strategy = tfdist.strategies.AllReduceStrategy(
            *([collective] if collective else []),
            compression=name,
            check_first_step="off",
        )
        collective = strategy.collective
        weights = trained(strategy)
        found[name] = {
            "weights": weights,
            "bits": bits_of(weights),
            "loops": custom_loops(strategy),
        }
    with tempfile.TemporaryDirectory() as folder:
        found["powersgd"] = resumed(collective, folder)
    return found


@pytest.fixture(scope="module")
def ranks():
    """The findings of two processes."""
    return tfdist.testing.cluster(compress, timeout_seconds=1200).values


# Each of five updates rounds the sum of two numbers to so many bits; momentum adds them
# up, and the model makes the difference at most as much larger again.
@pytest.mark.parametrize(("name", "tolerance"), [("fp16", 2e-3), ("bf16", 2e-2)])
def test_training_stays_close_to_that_with_whole_gradients(ranks, name, tolerance):
    largest = 0.0
    for mine, its in zip(
        ranks[0][name]["weights"], ranks[0]["none"]["weights"], strict=True
    ):
        largest = max(largest, np.abs(mine - its).max())

    assert 0 < largest < tolerance


@pytest.mark.parametrize("name", NAMES)
def test_all_ranks_have_the_same_bits(ranks, name):
    assert len({its[name]["bits"] for its in ranks}) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_sum_of_large_gradients_does_not_overflow(ranks, name):
    size = len(ranks)
    for its in ranks:
        assert its[name]["loops"]["largest"] == pytest.approx(
            [-size * LARGEST] * 3, rel=size * 2.0 ** -BITS[name]
        )


@pytest.mark.parametrize("name", NAMES)
def test_loss_scaling_skips_an_infinite_step_on_all_ranks(ranks, name):
    skips = name == "fp16"
    for its in ranks:
        assert (its[name]["loops"]["skipped"] == [0.0, 0.0, 0.0]) == skips
        assert its[name]["loops"]["scale"] == (512.0 if skips else 1024.0)


def test_powersgd_learns_and_resumes_with_its_residuals_to_the_bit(ranks):
    assert len({its["powersgd"]["whole"] for its in ranks}) == 1
    for its in ranks:
        assert its["powersgd"]["parts"] == its["powersgd"]["whole"]
        assert its["powersgd"]["losses"][-1] < its["powersgd"]["losses"][0] / 5
