"""`tfdist verify` on small scripts, each with one fault planted."""

import pytest

from tfdist.verify import Orders, VerifyError, verify

pytestmark = pytest.mark.slow

SCRIPT = '''
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdist

fault = sys.argv[1]
if fault != "plain":
    strategy = tfdist.strategies.AllReduceStrategy()
    size = strategy.num_replicas_in_sync
    batch_size = 8 * size
    keras.utils.set_random_seed(5 + tfdist.rank() if fault == "seed" else 5)
x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
y = 2 * x[:, :1] - 1


class Noise(keras.layers.Layer):
    def call(self, inputs):
        return inputs + tf.random.normal(tf.shape(inputs), dtype=inputs.dtype)


class Queue(keras.layers.Layer):
    def build(self, shape):
        self.rows = self.add_weight((32, shape[-1]), trainable=False, name="rows")

    def call(self, inputs):
        rows = keras.ops.concatenate([inputs, self.rows], axis=0)
        self.rows.assign(rows[:32])
        return inputs


class OfBatches(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="of_batches")
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y, p, sample_weight=None):
        self.total.assign_add(keras.ops.mean(p))

    def result(self):
        return self.total


def whole(context):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)


def parted(context):
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat()
    dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    return dataset.shuffle(96, seed=3).batch(8)


def build():
    layers = [keras.layers.Dense(4, name="first")]
    if fault == "batch_norm":
        layers += [keras.layers.BatchNormalization(name="norm")]
    if fault == "queue":
        layers += [Queue(name="queue")]
    if fault == "none":
        layers += [
            keras.layers.BatchNormalization(name="norm", synchronized=True),
            keras.layers.Dropout(0.5, name="drop"),
            Noise(name="noise"),
        ]
    layers += [keras.layers.Dense(1, name="last")]
    inputs = outputs = keras.Input((4,))
    for layer in layers:
        outputs = layer(outputs)
    return keras.Model(inputs, outputs)


def loop():
    """A custom loop."""
    dataset = strategy.experimental_distribute_dataset(whole(None))

    def step(features, labels):
        with tf.GradientTape() as tape:
            losses = tf.reduce_sum((model(features, training=True) - labels) ** 2, 1)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=batch_size)
            if fault == "undivided":
                loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def train(features, labels):
        return strategy.reduce("SUM", strategy.run(step, args=(features, labels)), None)

    for features, labels in dataset:
        train(features, labels)


if fault == "plain":
    model = build()
    model.compile("sgd", "mse")
    model.fit(x, y, verbose=0, epochs=1000)

with strategy.scope():
    model = build()
    model.compile(
        keras.optimizers.Adam(0.01, clipnorm=1.0),
        "mse",
        metrics=[OfBatches() if fault == "batch mean" else "mae"],
        steps_per_execution=2 if fault == "none" else 1,
    )
if fault in ("loop", "undivided"):
    loop()
elif fault in ("unsharded", "parted"):
    dataset_fn = whole if fault == "unsharded" else parted
    data = strategy.distribute_datasets_from_function(dataset_fn)
    model.fit(data, steps_per_epoch=6, verbose=0)
elif fault == "short":
    model.fit(x[:24], y[:24], batch_size=batch_size, verbose=0)
    raise SystemExit(0)
else:
    model.fit(x, y, batch_size=batch_size, epochs=1000, verbose=0)
raise SystemExit("the script was not stopped")
'''


@pytest.fixture
def verdict_of(tmp_path):
    """Return a function that verifies three steps of the script with a fault."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def run(fault, **orders):
        orders = Orders((str(script), fault), steps=3, **orders)
        return verify(orders, timeout_seconds=1200)

    return run


def test_a_script_without_a_fault_passes(verdict_of):
    """Random numbers, steps in one execution, a bias without a gradient but noise."""
    verdict = verdict_of("none")

    assert verdict.passed, verdict
    assert (verdict.size, verdict.steps, verdict.rows) == (2, 3, 16)
    kinds = [group.kind for group in verdict.groups]
    assert kinds == ["weights", "state", "optimizer", "metrics", "gradients"]


@pytest.mark.parametrize(
    ("fault", "first", "cause"),
    [
        ("batch_norm", "first/kernel", "batch normalisation that is not synchronised"),
        ("seed", "", "a seed that differs by rank"),
        ("unsharded", None, "an unsharded dataset"),
        ("undivided", "", "a loss that is not divided by the global batch size"),
        ("queue", "queue/rows", "state of a layer that is not a mean over rows"),
        ("batch mean", "of_batches/total", "a metric that is not a sum over rows"),
    ],
)
def test_a_planted_fault_is_named(verdict_of, fault, first, cause):
    verdict = verdict_of(fault)

    assert not verdict.passed
    assert verdict.cause.name.startswith(cause)
    assert (verdict.first is None) == (first is None)
    if verdict.first is not None:
        assert verdict.first.step == 1
        assert verdict.first.name.startswith(first)


@pytest.mark.parametrize(("kind", "float64"), [("loop", False), ("parted", True)])
def test_what_is_no_fault_in_a_script_that_does_more_by_itself(
    verdict_of, kind, float64
):
    verdict = verdict_of(kind, float64=float64)

    assert verdict.passed, verdict
    assert verdict.rows == 16


def test_a_script_that_ends_early_is_compared_at_its_end(verdict_of):
    verdict = verdict_of("short")

    assert verdict.passed, verdict
    assert verdict.steps == 2


def test_a_script_that_trains_without_tfdist(verdict_of):
    with pytest.raises(VerifyError, match="must train under a strategy of tfdist"):
        verdict_of("plain")


OF_IMAGES = """
import sys

import keras
import numpy as np

import tfdist

levels, fault = int(sys.argv[1]), sys.argv[2]
strategy = tfdist.strategies.AllReduceStrategy()
keras.utils.set_random_seed(1)
draw = np.random.default_rng(0).integers
x = (draw(0, levels, (256, 16, 16, 3)) / (levels - 1)).astype("float32")
y = draw(0, 4, 256)
of_row = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)


def block(filters):
    return [
        keras.layers.Conv2D(filters, 3, padding="same"),
        keras.layers.BatchNormalization(synchronized=fault != "per rank"),
        keras.layers.ReLU(),
        keras.layers.MaxPooling2D(),
    ]


with strategy.scope():
    layers = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(4)]
    layers = [keras.Input((16, 16, 3)), *block(8), *block(16), *block(16), *layers]
    model = keras.Sequential(layers)
    mean, total = keras.ops.mean, keras.ops.sum
    model.compile(
        keras.optimizers.Adam(0.01),
        lambda y, p: (total if fault == "sum" else mean)(of_row(y, p)),
    )
model.fit(x, y, batch_size=32, epochs=99, verbose=0)
"""


@pytest.fixture
def verdict_on_images(tmp_path):
    """Return a function that verifies a CNN on images of a few colours."""
    script = tmp_path / "train.py"
    script.write_text(OF_IMAGES)

    def run(levels, fault, **orders):
        orders = Orders((str(script), str(levels), fault), **orders)
        return verify(orders, timeout_seconds=1200)

    return run


@pytest.mark.parametrize(("levels", "float64"), [(2, False), (4, True)])
def test_the_rounding_of_a_script_itself_is_no_fault(
    verdict_on_images, levels, float64
):
    verdict = verdict_on_images(levels, "none", float64=float64)

    assert verdict.passed, verdict
    biases = {"sequential/conv2d/bias", "sequential/conv2d_1/bias"}
    assert biases <= {*verdict.noise} or verdict.rounding is not None


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("per rank", "batch normalisation that is not synchronised"),
        ("sum", "0.5 times on two ranks: the loss is a sum over rows, not a mean"),
    ],
)
def test_rounding_hides_no_fault(verdict_on_images, fault, cause):
    verdict = verdict_on_images(2, fault, steps=3)

    assert not verdict.passed
    assert verdict.cause.name == cause
