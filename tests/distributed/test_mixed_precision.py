"""Mixed precision: all ranks scale, skip and update alike, as one process does.

Each case trains a small model on rows of which one may be infinite. It is the last of
its batch, so the gradient of the last rank overflows, and that of no other.
"""

import numpy as np
import pytest

import tfdist

BATCH = 12
INF = float("inf")


# The cases: the steps, of which "x" overflows on the last rank; the inner optimizer;
# the options of loss scaling, or None for what `compile` puts there by itself.


def sgd(**options):
    return lambda keras: keras.optimizers.SGD(0.01, **options)


def adam(**options):
    return lambda keras: keras.optimizers.Adam(0.01, **options)


CASES = {
    "growth after an overflow": (".x...", sgd(), {"dynamic_growth_steps": 2}),
    "accumulated and clipped": (
        "..x.....",
        adam(gradient_accumulation_steps=3, clipnorm=0.05, weight_decay=0.01),
        {},
    ),
}
# In float16, on rows so small that no other step overflows with a scale of 2**15.
HALF = {
    "compile's own, overflow": (".x.x", sgd(), None, 0.1),
    "Keras's own, mixed_float16": (".x..", sgd(), {"keras_own": True}, 0.1),
}
# Scale, finite steps, overflows and skipped steps at the end, by hand, from 1024.
EXPECTED = {
    "growth after an overflow": (1024.0, 1, 0, 1),
    "accumulated and clipped": (512.0, 5, 1, 1),
    "compile's own, overflow": (2.0**13, 0, 1, 2),
    "Keras's own, mixed_float16": (512.0, 2),
}


def data(steps, spread=1.0):
    """Return a batch of rows for each step."""
    random = np.random.default_rng(5)
    x = random.normal(0.0, spread, (len(steps) * BATCH, 4)).astype("float32")
    y = x[:, :1] - 0.5 * x[:, 1:2]
    for number, step in enumerate(steps):
        if step == "x":
            x[number * BATCH + BATCH - 1, 2] = INF
    return x, y


def make_optimizer(inner, options):
    import keras

    if options is None:
        return inner(keras)
    options = {**options}
    kind = (
        keras.optimizers.LossScaleOptimizer
        if options.pop("keras_own", False)
        else tfdist.mixed_precision.LossScaleOptimizer
    )
    return kind(inner(keras), initial_scale=1024.0, **options)


def make_model(strategy, optimizer):
    import keras

    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)]
        )
        model.compile(optimizer(), "mse")
    return model


def state_of(optimizer):
    names = ("dynamic_scale", "step_counter", "overflow_counter", "skipped_steps")
    return tuple(
        getattr(optimizer, name).numpy().item()
        for name in names
        if hasattr(optimizer, name)
    )


def train(strategy, steps, inner, options, spread=1.0):
    """Train by fit and return all that must agree."""
    model = make_model(strategy, lambda: make_optimizer(inner, options))
    x, y = data(steps, spread)
    history = model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0).history
    return {
        "weights": [weight.tolist() for weight in model.get_weights()],
        "bits": [weight.tobytes() for weight in model.get_weights()],
        "optimizer": [
            variable.numpy().tolist()
            for variable in model.optimizer.inner_optimizer.variables
            if "gradient_accumulator" not in variable.path
        ],
        "state": state_of(model.optimizer),
        "loss_scale": history["loss_scale"],
        "skipped_steps": history.get("skipped_steps"),
        "asked": tfdist.mixed_precision.loss_scale(model),
        "type": type(model.optimizer).__module__.split(".")[0],
    }


# The seven steps of the recipe, each noted where it happens. The model is y = w x
# with w = 1, the target 0, so that the gradient of the loss is 2 w mean(x^2).

SCALE = 1024.0
LEARNING_RATE = 2.0**-14


def seven_steps(strategy):
    """Make one step in float16 and return what was seen on its way."""
    import keras
    import tensorflow as tf

    seen = {}

    class Probe(keras.layers.Layer):
        """Multiplies by a weight, and notes the types on the way there and back."""

        def build(self, shape):
            self.w = self.add_weight(shape=(), initializer="ones")

        def call(self, x):
            copy = tf.convert_to_tensor(self.w)
            seen["copy"] = copy.dtype.name
            outputs = x * copy

            @tf.custom_gradient
            def backward(outputs):
                def gradient(upstream):
                    seen["upstream"] = (upstream.dtype.name, upstream.numpy().ravel())
                    return upstream

                return tf.identity(outputs), gradient

            outputs = backward(outputs)
            if not isinstance(outputs, keras.KerasTensor) and hasattr(outputs, "numpy"):
                seen["activation"] = outputs.dtype.name
            return outputs

    class Inner(keras.optimizers.SGD):
        """Notes what comes after the unscaling, and what after the clipping."""

        def apply(self, grads, trainable_variables=None):
            seen["unscaled"] = [(g.dtype.name, g.numpy().item()) for g in grads]
            super().apply(grads, trainable_variables)

        def update_step(self, gradient, variable, learning_rate):
            seen["clipped"] = gradient.numpy().item()
            seen["master"] = variable.dtype.name
            super().update_step(gradient, variable, learning_rate)

    class Outer(tfdist.mixed_precision.LossScaleOptimizer):
        """Notes the loss before and after scaling, and the gradients summed."""

        def scale_loss(self, loss):
            scaled = super().scale_loss(loss)
            seen["loss"] = (loss.numpy().item(), scaled.numpy().item())
            return scaled

        def check_finite(self, grads):
            seen["summed"] = [(g.dtype.name, g.numpy().item()) for g in grads]
            return super().check_finite(grads)

    tfdist.mixed_precision.set_policy("mixed_float16")
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), Probe()])
        inner = Inner(LEARNING_RATE, global_clipnorm=1.0)
        model.compile(Outer(inner, SCALE), "mse", run_eagerly=True)
    tfdist.mixed_precision.set_policy("float32")
    x = np.repeat([[1.0], [3.0]], BATCH // 2, axis=0)
    model.fit(x, 0 * x, batch_size=BATCH, shuffle=False, verbose=0)
    seen["variable"] = model.weights[0].dtype
    seen["weight"] = model.get_weights()[0].item()
    return seen


def custom_loop(strategy):
    """Scale by hand, as in a custom loop; the second step overflows on the last."""
    import tensorflow as tf

    model = make_model(strategy, lambda: make_optimizer(sgd(), {}))
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
    x, y = data(".x.")
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)

    @tf.function
    def step(batch):
        def replica_step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((model(x, training=True) - y) ** 2) / BATCH
                scaled = optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)

        strategy.run(replica_step, args=batch)

    for batch in strategy.experimental_distribute_dataset(batches):
        step(batch)
    return {
        "weights": [weight.tolist() for weight in model.get_weights()],
        "state": state_of(optimizer),
    }


BY_HAND = {"custom loop": custom_loop, "seven steps": seven_steps}


def train_cases(strategy, names):
    """Train the cases of some names; those in float16 come last."""
    results = {}
    for policy, cases in (("float32", CASES), ("mixed_float16", HALF)):
        tfdist.mixed_precision.set_policy(policy)
        for name in cases:
            if name in names:
                results[name] = train(strategy, *cases[name])
    return results


def together(names):
    """Run cases in this process; the seven steps would see a check of the first."""
    strategy = tfdist.strategies.AllReduceStrategy(
        timeout_seconds=300, check_first_step="off"
    )
    results = {name: BY_HAND[name](strategy) for name in BY_HAND if name in names}
    return results | train_cases(strategy, names)


def alone(names):
    """Run the cases in one process without a strategy."""
    import tensorflow as tf

    return train_cases(tf.distribute.get_strategy(), names)


@pytest.fixture(scope="module")
def one(asked):
    """What one process ends with."""
    job = {"size": 1, "args": (asked,), "timeout_seconds": 1200}
    return tfdist.testing.cluster(alone, **job).values[0]


@pytest.fixture(scope="module")
def ranks(asked):
    """Return the results of each rank of a cluster; the matrix has one of three."""
    job = {"args": (asked,), "timeout_seconds": 1200}
    return tfdist.testing.cluster(together, **job).values


@pytest.mark.parametrize(
    "case",
    [
        pytest.param("growth after an overflow", marks=pytest.mark.slow),
        pytest.param("accumulated and clipped", marks=pytest.mark.slow),
        "compile's own, overflow",
        pytest.param("Keras's own, mixed_float16", marks=pytest.mark.slow),
    ],
)
def test_n_processes_end_as_one(ranks, one, case):
    found, right = ranks[0][case], one[case]
    # In float16 the sum over a batch depends on how it is divided.
    tolerance = {"atol": 1e-3} if case in HALF else {"rtol": 1e-5, "atol": 1e-7}
    for kind in ("weights",) if case in HALF else ("weights", "optimizer"):
        for array, expected in zip(found[kind], right[kind], strict=True):
            np.testing.assert_allclose(array, expected, **tolerance)
            assert np.isfinite(array).all()
    for kind in ("loss_scale", "asked"):
        assert found[kind] == right[kind]
    assert found["state"] == EXPECTED[case]
    assert found["loss_scale"] == [EXPECTED[case][0]]
    skipped = [EXPECTED[case][3]] if len(EXPECTED[case]) > 2 else None
    assert found["skipped_steps"] == skipped
    # `compile` leaves Keras's own optimizer as it is.
    assert found["type"] == ("keras" if case.startswith("Keras") else "tfdist")
    for kind in ("bits", "state", "loss_scale", "skipped_steps", "optimizer"):
        assert all(rank[case][kind] == found[kind] for rank in ranks[1:])


@pytest.mark.parametrize("case", ["custom loop"])
def test_a_custom_loop_skips_alike(ranks, case):
    assert {rank[case]["state"] for rank in ranks} == {(512.0, 1, 1, 1)}
    assert all(rank[case] == ranks[0][case] for rank in ranks)
    for weight in ranks[0][case]["weights"]:
        assert np.isfinite(weight).all()


# The recipe of ICLR 2018. Rank 0 has ones; the last has threes.


@pytest.mark.parametrize("case", ["seven steps"])
def test_the_seven_steps(ranks, case):
    rows = BATCH // len(ranks)
    for number, rank in enumerate(ranks):
        seen = rank[case]
        # 1: the weights have a copy in float16. 2: so is the forward pass.
        assert (seen["variable"], seen["copy"]) == ("float32", "float16")
        assert seen["activation"] == "float16"
        # 3: the loss is multiplied by the scale.
        loss, scaled = seen["loss"]
        assert scaled == SCALE * loss
        # 4: the backward pass is in float16, and scaled.
        dtype, upstream = seen["upstream"]
        assert dtype == "float16"
        if number in (0, len(ranks) - 1):
            x = 1.0 if number == 0 else 3.0
            assert loss == x**2
            np.testing.assert_allclose(upstream, SCALE * 2 * x / rows, rtol=1e-3)
        # 5: the gradients are summed, then divided by the scale: the mean of 1 and 9,
        # times 2, over all ranks.
        ((dtype, summed),) = seen["summed"]
        ((_, unscaled),) = seen["unscaled"]
        assert dtype == "float32"
        np.testing.assert_allclose(summed, SCALE * 10, rtol=1e-3)
        assert unscaled == summed / SCALE
        # 6: unscaled gradients are clipped.
        assert seen["clipped"] == pytest.approx(1.0, rel=1e-6)
        # 7: the weights are updated in float32, by a step that float16 could not make:
        # it has 2**-11 at most below 1.
        assert seen["master"] == "float32"
        assert seen["weight"] == 1.0 - LEARNING_RATE
    assert np.float16(1.0 - LEARNING_RATE) == 1.0


# TensorFlow's MirroredStrategy, two devices in one process.


def mirrored_strategy():
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def on_two_devices():
    """Run the cases with our optimizer, and tell which copies of a variable differ."""
    strategy = mirrored_strategy()
    results = {}
    for name, (steps, inner, options) in CASES.items():
        model = make_model(strategy, lambda: make_optimizer(inner, options))  # noqa: B023
        x, y = data(steps)
        history = model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0).history
        variables = [*model.weights, *model.optimizer.variables]
        copies = [strategy.experimental_local_results(v.value) for v in variables]
        results[name] = {
            "weights": [weight.tolist() for weight in model.get_weights()],
            "state": state_of(model.optimizer),
            "logs": (history["loss_scale"], history["skipped_steps"]),
            "copies": {len(copy) for copy in copies},
            "differ": [
                variable.path
                for variable, copy in zip(variables, copies, strict=True)
                if len({one.numpy().tobytes() for one in copy}) > 1
            ],
        }
    return results


@pytest.fixture(scope="module")
def mirrored():
    """What two devices of one process end with."""
    return tfdist.testing.cluster(on_two_devices, size=1, timeout_seconds=1200).values[
        0
    ]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_devices_end_as_one(mirrored, one, case):
    for weight, right in zip(
        mirrored[case]["weights"], one[case]["weights"], strict=True
    ):
        np.testing.assert_allclose(weight, right, rtol=1e-5, atol=1e-7)
        assert np.isfinite(weight).all()
    assert mirrored[case]["state"] == EXPECTED[case]
    assert mirrored[case]["logs"] == ([EXPECTED[case][0]], [EXPECTED[case][3]])
    assert mirrored[case]["copies"] == {2}
    assert mirrored[case]["differ"] == []
