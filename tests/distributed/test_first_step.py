"""The check of the first step names programs that differ in silence, and no others."""

import hashlib
import warnings
from contextlib import nullcontext

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

import tfdist
from tfdist.compat.patching import holding
from tfdist.first_step import check
from tfdist.gradients import sparse
from tfdist.testing import cluster
from tfdist.training import hooks

ROWS, BATCH, FEATURES = 16, 8, 5


def update(model, loss_of, *, change=lambda gradients: gradients):
    """Update a model by the gradients of a loss."""
    with tf.GradientTape() as tape:
        loss = loss_of()
    gradients = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply(change(gradients), model.trainable_variables)
    return {"loss": loss}


def clip(model, data):
    x, y = data
    return update(
        model,
        lambda: model.compute_loss(x, y, model(x, training=True)),
        change=lambda gradients: tf.clip_by_global_norm(gradients, 0.1)[0],
    )


def attack(model, data):
    x, y = data
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = model.compute_loss(x, y, model(x, training=True))
    return keras.Model.train_step(model, (x + tape.gradient(loss, x), y))


def average(model, data):
    x, y = data

    def loss():
        by_row = tf.reduce_sum((y - model(x, training=True)) ** 2, -1)
        return tf.nn.compute_average_loss(by_row, global_batch_size=BATCH)

    return update(model, loss)


def contrast(model, data):
    x, _ = data
    replica = tf.distribute.get_replica_context()

    def loss():
        views = model(x, training=True)
        numbers = replica.all_gather(tf.shape(views)[:1], axis=0)
        before = tf.reduce_sum(numbers[: replica.replica_id_in_sync_group])
        likeness = views @ tf.transpose(replica.all_gather(views, axis=0))
        own = before + tf.range(tf.shape(views)[0])
        return tf.reduce_mean(
            keras.losses.sparse_categorical_crossentropy(own, likeness, True)
        )

    return update(model, loss)


def normalize(x):
    return (x - tf.reduce_mean(x, 0)) / (1e-3 + tf.math.reduce_std(x, 0))


def square(model, data):
    with tf.GradientTape() as tape:
        loss = model.compute_loss(None, data[1], model(data[0], training=True))
    weights = model.trainable_variables
    for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
        weight.assign_sub(gradient**2)
    return {"loss": loss}


class Queue(keras.layers.Layer):
    def build(self, shape):
        self.rows = self.add_weight((8, shape[-1]), trainable=False)

    def call(self, x):
        self.rows.assign(tf.concat([x, self.rows], 0)[:8])
        return x


class Count(keras.layers.Layer):
    def build(self, shape):
        self.seen = self.add_weight((), trainable=False, initializer="zeros")

    def call(self, x):
        self.seen.assign_add(tf.cast(tf.shape(x)[0], self.seen.dtype))
        return x


class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_weight(shape=(), initializer="zeros")

    def update_state(self, y, p, sample_weight=None):
        self.value.assign_add(tf.reduce_max(tf.abs(y - p)))

    def result(self):
        return self.value


class OverEpochs(keras.metrics.MeanSquaredError):
    def reset_state(self):
        pass


class Positions(keras.layers.Layer):
    def build(self, shape):
        self.table = keras.layers.Embedding(shape[-1], 1)
        self.table.build(None)

    def call(self, x):
        return x + self.table(tf.range(x.shape[-1]))[:, 0]


class AddedByRow(keras.layers.Layer):
    def call(self, x):
        self.add_loss(tf.reduce_sum(x**2, -1, keepdims=True))
        return x


class Moving(keras.layers.Layer):
    def build(self, shape):
        self.mean = tf.Variable(tf.zeros(shape[-1], self.dtype), trainable=False)

    def call(self, x):
        self.mean.assign(tf.reduce_mean(x, 0))
        return x


# Options of `train` that differ in silence, and what is said of each.
SILENT = {
    "a sum": (
        {"loss": lambda y, p: tf.reduce_sum((y - p) ** 2)},
        "is 0.5 times that of one process, and",
    ),
    "the gradient of a mean": ({"step": attack}, "computed over all rows"),
    "rows normalized": (
        {"layer": lambda: keras.layers.Lambda(normalize)},
        "computed over all rows",
    ),
    "clipped by hand": ({"step": clip}, "Let the optimizer clip"),
    "squares by hand": ({"step": square}, "Let optimizers update weights"),
    "a queue": ({"layer": Queue}, "Give a queue the rows of all ranks"),
    "a count": ({"layer": Count}, "Keep a count in a metric"),
    "a maximum": ({"metric": Largest}, "the result of 'largest'"),
}
# Those that give what one process gives, or draw numbers.
RIGHT = {
    "dropout": {"layer": lambda: keras.layers.Dropout(0.5)},
    "normalization": {"layer": keras.layers.BatchNormalization},
    "clipping": {"optimizer": lambda: keras.optimizers.Adam(global_clipnorm=0.1)},
    "accumulation": {
        "optimizer": lambda: keras.optimizers.Adam(gradient_accumulation_steps=2)
    },
    "loss scaling": {
        "optimizer": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    },
    "a metric over epochs": {"metric": OverEpochs},
    "rows of all ranks": {"step": contrast},
}
# What tfdist mends, and what takes the mend out.
MENDED = {
    "positions": (
        {"layer": Positions},
        lambda: holding(sparse, "_origin_of", lambda indices: "rows"),
    ),
    "losses added by row": (
        {"layer": AddedByRow},
        lambda: without_patch(TensorFlowTrainer, "_aggregate_additional_loss"),
    ),
    "an average by the global size": (
        {"step": average},
        lambda: without_patch(tf.nn, "compute_average_loss"),
    ),
    "a raw variable": (
        {"layer": Moving},
        lambda: holding(hooks, "note_raw", lambda model: None),
    ),
}
# Those that keep something, which a check must put back.
KEEPING = ["a queue", "clipped by hand", "dropout", "accumulation"]
KEEPING += ["a metric over epochs"]
# Those that tell replicas in one process from processes.
OF_DEVICES = ["a sum", "clipped by hand", "a queue", "a count", "a maximum"]
OF_DEVICES += ["dropout", "normalization", "accumulation", "a metric over epochs"]
OF_DEVICES += ["rows of all ranks", *MENDED, *(f"{m}, taken out" for m in MENDED)]


def without_patch(owner, name):
    """Return a block in which a function is the original one."""
    return holding(owner, name, getattr(owner, name).__wrapped__)


def train(strategy, *, loss="mse", step=None, layer=None, metric=None, optimizer=None):
    """Train for two steps; return the model."""
    keras.utils.set_random_seed(1)
    kind = type("Model", (keras.Model,), {} if step is None else {"train_step": step})
    with strategy.scope():
        inputs = keras.Input((FEATURES,))
        hidden = keras.layers.Dense(4, "tanh")(inputs)
        hidden = hidden if layer is None else layer()(hidden)
        model = kind(inputs, keras.layers.Dense(1)(hidden))
        model.compile(
            keras.optimizers.Adam() if optimizer is None else optimizer(),
            loss,
            metrics=None if metric is None else [metric()],
            jit_compile=False,
        )
    random = np.random.default_rng(3)
    x, y = random.normal(size=(ROWS, FEATURES)), random.normal(size=(ROWS, 1))
    model.fit(x, y, batch_size=BATCH, verbose=0)
    return model


def said_of(strategy, options, taken_out=nullcontext):
    """Train; return what was warned of the first step, and a hash of what is left."""
    with warnings.catch_warnings(record=True) as caught, taken_out():
        warnings.simplefilter("always")
        model = train(strategy, **options)
    texts = [str(one.message) for one in caught]
    content = [np.asarray(variable).tobytes() for variable in model.variables]
    content += [repr(np.random.random()).encode()]
    digest = hashlib.sha256(b"".join(content)).hexdigest()
    return [text for text in texts if "irst step" in text], digest


def said_of_all(is_mirrored):
    """Return what is said of each program, and what it leaves."""
    keras.config.set_floatx("float64")
    programs = {name: options for name, (options, _) in SILENT.items()} | RIGHT
    if is_mirrored:
        tfdist.devices.split("CPU:0", 2)
        strategy = tfdist.strategies.MirroredStrategy(["CPU:0", "CPU:1"])
        programs = {name: programs[name] for name in programs if name in OF_DEVICES}
    else:
        strategy = tfdist.strategies.AllReduceStrategy()
    programs |= {name: options for name, (options, _) in MENDED.items()}
    return {
        **{name: said_of(strategy, options) for name, options in programs.items()},
        **{
            f"{name}, taken out": said_of(strategy, options, taken_out)
            for name, (options, taken_out) in MENDED.items()
        },
    }


def said_on(size, *, is_mirrored):
    """Return what the chief says of each program, and what it leaves."""
    chief, *others = cluster(
        said_of_all, size=size, args=(is_mirrored,), timeout_seconds=1200
    ).values
    for other in others:
        assert not any(texts for texts, _ in other.values()), "only the chief warns"
    return chief


@pytest.fixture(scope="module")
def said_on_processes():
    return said_on(2, is_mirrored=False)


@pytest.fixture(scope="module")
def said_on_devices():
    return said_on(1, is_mirrored=True)


def on_both(programs):
    """Return the parameters of programs on processes, and of some on devices."""
    of_devices = [name for name in programs if name in OF_DEVICES]
    slow = pytest.mark.slow
    return [
        *(("said_on_processes", name) for name in programs),
        *(pytest.param("said_on_devices", name, marks=slow) for name in of_devices),
    ]


@pytest.fixture
def said(request, place, program):
    """Return what is said of a program."""
    return request.getfixturevalue(place)[program][0]


@pytest.mark.parametrize(("place", "program"), on_both(SILENT))
def test_a_silent_program_is_named(said, program):
    (text,) = said

    assert text.startswith("The first step differs from that of one process: the ")
    assert SILENT[program][1] in text


@pytest.mark.parametrize(("place", "program"), on_both([*RIGHT, *MENDED]))
def test_nothing_is_said_of_what_is_right(said):
    assert said == []


@pytest.mark.parametrize(
    ("place", "program"), on_both([f"{family}, taken out" for family in MENDED])
)
def test_what_is_mended_is_named_without_the_mend(said):
    (text,) = said

    assert text.startswith("The first step differs from that of one process: the ")


def bits_and_error():
    """Return hashes of what training leaves unchecked, and what "raise" raises."""
    keras.config.set_floatx("float64")
    strategy, raised = tfdist.strategies.AllReduceStrategy(check_first_step="off"), None
    silent = {name: options for name, (options, _) in SILENT.items()}
    programs = {**silent, **RIGHT}
    hashes = {name: said_of(strategy, programs[name])[1] for name in KEEPING}
    strict = tfdist.strategies.AllReduceStrategy(
        strategy.collective, check_first_step="raise"
    )
    try:
        train(strict, **SILENT["a sum"][0])
    except RuntimeError as error:
        raised = str(error)
    train(strict, **RIGHT["dropout"])
    return hashes, raised


def test_the_check_changes_no_bit_and_raises_on_all_ranks(said_on_processes):
    (hashes, raised), (_, other) = cluster(bits_and_error, timeout_seconds=1200).values

    for name, digest in hashes.items():
        assert said_on_processes[name][1] == digest, name
    assert raised == other
    assert raised.startswith("The first step differs from that of one process")


def train_what_costs_too_much():
    strategy = tfdist.strategies.AllReduceStrategy()
    for layer, most in ((keras.layers.LSTM(2), 40), (keras.layers.Dense(2), 5)):
        with strategy.scope(), holding(check, "_MOST_WEIGHTS", most):
            model = keras.Sequential([keras.Input((80, 2)), layer])
            model.compile("sgd", "mse")
            x, y = np.ones((8, 80, 2)), np.ones(layer.compute_output_shape((8, 80, 2)))
            model.fit(x, y, batch_size=8, verbose=0)


@pytest.mark.slow
def test_what_costs_too_much_is_left_out_with_a_line():
    logs = cluster(train_what_costs_too_much).logs

    for reason in (
        "lstm runs over more than 64 steps",
        "the model has 6 weights, more than 5",
    ):
        line = f"tfdist: The first step is not checked: {reason}"
        assert [log.count(line) for log in logs] == [1, 0]
