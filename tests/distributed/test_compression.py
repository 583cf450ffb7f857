"""Gradients that travel in two bytes an element, between real processes."""

import hashlib
import tempfile

import numpy as np
import pytest

import tfdist

# What travels is also tested in units, without processes.
pytestmark = pytest.mark.slow

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
    model.fit(words, labels, batch_size=20, epochs=6, shuffle=False, verbose=0)
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
    gradients = {
        "largest": tf.fill([3], LARGEST),
        "small": tf.fill([3], 2.0**-20 * own),
        "too large": tf.constant([1e6, -1e6, own]),
    }
    with strategy.scope():
        plain = {name: keras.optimizers.SGD(1.0) for name in gradients}
        scaled = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(1.0), initial_scale=1024.0
        )
    found = {
        name: summed(strategy, gradient, plain[name])
        for name, gradient in gradients.items()
    }
    found["skipped"] = summed(strategy, gradients["too large"], scaled)
    found["scale"] = float(scaled.dynamic_scale)
    return found


def types_sent(collective, name):
    """Return the types of the collective operations in a graph."""
    import tensorflow as tf

    from tfdist.compat.keras.hooks import GradientPlan
    from tfdist.gradients.reducer import GradientReducer

    reducer = GradientReducer(collective, compression=name)
    double = tf.zeros([2], tf.float64)

    @tf.function
    def reduce(gradient):
        plan = GradientPlan([gradient, double])
        return reducer.reduce(plan, "types", beside=[tf.ones([2])])

    operations = reduce.get_concrete_function(tf.TensorSpec([5])).graph.get_operations()
    return sorted(
        op.get_attr("T").name for op in operations if op.type.startswith("Collective")
    )


def reduced(collective, name):
    """Sum gradients of several types, as they are."""
    import tensorflow as tf

    from tfdist.compat.keras.hooks import GradientPlan
    from tfdist.gradients.reducer import GradientReducer

    rank = collective.rank
    random = tf.random.stateless_normal([100_000], [rank, 7])
    gradients = [
        random,
        tf.constant([2**24 + 1 + rank, -(2**31) + 10 * rank]),
        tf.IndexedSlices(random[:2], tf.constant([rank, 5], tf.int64), [9]),
    ]
    reducer = GradientReducer(collective, compression=name)
    total, integers, rows = reducer.reduce(GradientPlan(gradients), "several types")
    return {
        "total": total.numpy(),
        "integers": integers.numpy().tolist(),
        "rows": (rows.indices.numpy().tolist(), rows.values.numpy()),
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
            "types": types_sent(collective, name),
            "reduced": reduced(collective, name),
        }
    with tempfile.TemporaryDirectory() as folder:
        found["powersgd"] = resumed(collective, folder)
    return found


@pytest.fixture(scope="module")
def ranks():
    """The findings of two processes."""
    return tfdist.testing.cluster(compress, timeout_seconds=1200).values


# Each of 15 updates rounds the sum of two numbers to so many bits; momentum adds up
# ten of them, and the model makes the difference at most as much larger again.
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
    assert len({its[name]["reduced"]["total"].tobytes() for its in ranks}) == 1


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("none", ["float32", "float64"]),
        ("fp16", ["float16", "float32"]),
        ("bf16", ["bfloat16", "float32"]),
    ],
)
def test_two_bytes_an_element_are_sent(ranks, name, types):
    for its in ranks:
        assert its[name]["types"] == types


@pytest.mark.parametrize("name", NAMES)
def test_sums_are_those_of_the_gradients_to_the_precision_of_the_type(ranks, name):
    total = ranks[0][name]["reduced"]["total"]
    exact = ranks[0]["none"]["reduced"]["total"]

    # Each number is rounded once, and each sum of two.
    np.testing.assert_allclose(
        total, exact, rtol=0, atol=20 * len(ranks) * 2.0 ** -BITS[name]
    )
    assert (total.dtype, total.shape) == (np.float32, (100_000,))


@pytest.mark.parametrize("name", NAMES)
def test_integers_are_untouched(ranks, name):
    size = len(ranks)
    others = sum(range(size))
    wrapped = (-(2**31) * size + 10 * others + 2**31) % 2**32 - 2**31

    for its in ranks:
        integers = its[name]["reduced"]["integers"]
        assert integers == [(2**24 + 1) * size + others, wrapped]


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_sparse_gradients_are_rounded_and_kept(ranks, name):
    for its in ranks:
        indices, rows = its[name]["reduced"]["rows"]
        exact = its["none"]["reduced"]["rows"][1]
        assert indices == [i for rank in range(len(ranks)) for i in (rank, 5)]
        np.testing.assert_allclose(rows, exact, rtol=2.0 ** -BITS[name])


@pytest.mark.parametrize("name", NAMES)
def test_a_sum_of_large_gradients_does_not_overflow(ranks, name):
    size = len(ranks)
    for its in ranks:
        assert its[name]["loops"]["largest"] == pytest.approx(
            [-size * LARGEST] * 3, rel=size * 2.0 ** -BITS[name]
        )


@pytest.mark.parametrize("name", NAMES)
def test_small_gradients_count(ranks, name):
    total = sum(range(1, len(ranks) + 1)) * 2.0**-20
    for its in ranks:
        assert its[name]["loops"]["small"] == [-total] * 3


@pytest.mark.parametrize("name", NAMES)
def test_what_the_type_cannot_hold_is_infinite(ranks, name):
    size = len(ranks)
    million = float("inf") if name == "fp16" else size * 1e6
    others = sum(range(1, size + 1))
    for its in ranks:
        assert its[name]["loops"]["too large"] == pytest.approx(
            [-million, million, -others], rel=size * 2.0 ** -BITS[name]
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
