"""The check of the first step names programs that differ in silence, and no others."""

import hashlib
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.compat.patching import holding
from tfdist.first_step import check
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


def keep_largest_loss(model, data):
    """Keep it in variables that no layer holds; one is of the optimizer."""
    optimizer = model.optimizer
    if not hasattr(optimizer, "largest"):
        with tf.init_scope():
            optimizer.largest = keras.Variable(0.0, dtype=keras.config.floatx())
            optimizer.counter = keras.metrics.Mean()
    logs = keras.Model.train_step(model, data)
    largest = tf.reduce_max((data[1] - model(data[0])) ** 2)
    optimizer.largest.assign(largest)
    optimizer.counter.update_state(largest)
    return logs


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


class CountInIntegers(Count):
    def build(self, shape):
        self.seen = self.add_weight(
            (), dtype="int64", trainable=False, initializer="zeros"
        )


class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_weight(shape=(), initializer="zeros")

    def update_state(self, y, p, sample_weight=None):
        self.value.assign_add(tf.reduce_max(tf.abs(y - p)))

    def result(self):
        return self.value


class OncePerStep(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="once")
        self.total = self.add_weight(shape=(), initializer="zeros")
        self.steps = self.add_weight(shape=(), initializer="zeros")

    def update_state(self, y, p, sample_weight=None):
        self.total.assign_add(tf.reduce_mean(tf.abs(y - p)))
        self.steps.assign_add(1.0)

    def result(self):
        return self.total / self.steps


class OverEpochs(keras.metrics.MeanSquaredError):
    def reset_state(self):
        pass


class Moving(keras.layers.Layer):
    def build(self, shape):
        self.mean = tf.Variable(tf.zeros(shape[-1], self.dtype), trainable=False)

    def call(self, x):
        self.mean.assign(tf.reduce_mean(x, 0))
        return x


class Noise(keras.layers.Layer):
    def call(self, x):
        return x + keras.random.normal(tf.shape(x), dtype=x.dtype)


class SumOfErrors(keras.metrics.Sum):
    """A sum of floats over rows, which is taken for a mean."""

    def update_state(self, y, p, sample_weight=None):
        return super().update_state(tf.reduce_sum(tf.abs(y - p)))


class SumOfHits(keras.metrics.Sum):
    def update_state(self, y, p, sample_weight=None):
        hits = tf.cast(tf.abs(y - p) < 0.5, y.dtype)
        return super().update_state(tf.reduce_sum(hits))


class CountOfRows(keras.metrics.Sum):
    def update_state(self, y, p, sample_weight=None):
        return super().update_state(tf.shape(y)[0])


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
    "a loss that no layer keeps": (
        {"step": keep_largest_loss},
        "Ranks average variables of the model",
    ),
    "a count": ({"layer": Count}, "Keep a count in a metric"),
    "a count in integers": ({"layer": CountInIntegers}, "Keep a count in a metric"),
    "a maximum": ({"metric": Largest}, "the result of 'largest'"),
    "a sum of floats": ({"metric": SumOfErrors}, "give keras.metrics.Sum a count"),
    "a mean once a step": ({"metric": OncePerStep}, "unequal numbers of rows"),
    "a maximum of evaluate": (
        {"metric": Largest, "is_trained": False},
        "The first step of evaluate differs",
    ),
}
# Those that keep something, which a check must put back, and of which nothing is said.
# That nothing is said of other right programs, the rows of the equality matrix show.
KEEPING = {
    "dropout": {"layer": lambda: keras.layers.Dropout(0.5)},
    "noise of no generator": {"layer": Noise},
    "accumulation": {
        "optimizer": lambda: keras.optimizers.Adam(gradient_accumulation_steps=2)
    },
    "a metric over epochs": {"metric": OverEpochs},
    "a raw variable": {"layer": Moving},
    "a sum of integers": {"metric": SumOfHits},
    "a count, eagerly": {"metric": CountOfRows, "run_eagerly": True},
}
PROGRAMS = {name: options for name, (options, _) in SILENT.items()} | KEEPING
# What tfdist would not mend without the notes that it takes.
UNNOTED = "a raw variable, unnoted"
# Those that tell replicas in one process from processes.
OF_DEVICES = ("a sum", "clipped by hand", "a queue", "a count", "a maximum", *KEEPING)
# One for each kind of value that is compared, and one that keeps something.
A_FEW = ("a sum", "clipped by hand", "a count", "a maximum", "a raw variable")


def train(strategy, *, step=None, layer=None, metric=None, is_trained=True, **compiled):
    """Train for two steps and evaluate; return the model."""
    keras.utils.set_random_seed(1)
    kind = type("Model", (keras.Model,), {} if step is None else {"train_step": step})
    with strategy.scope():
        inputs = keras.Input((FEATURES,))
        hidden = keras.layers.Dense(4, "tanh")(inputs)
        hidden = hidden if layer is None else layer()(hidden)
        model = kind(inputs, keras.layers.Dense(1)(hidden))
        model.compile(
            compiled.get("optimizer", keras.optimizers.Adam)(),
            compiled.get("loss", "mse"),
            metrics=None if metric is None else [metric()],
            jit_compile=False,
            run_eagerly=compiled.get("run_eagerly", False),
        )
    random = np.random.default_rng(3)
    x, y = random.normal(size=(ROWS, FEATURES)), random.normal(size=(ROWS, 1))
    if is_trained:
        model.fit(x, y, batch_size=BATCH, verbose=0)
    model.evaluate(x, y, batch_size=BATCH, verbose=0)
    return model


def said_of(strategy, options):
    """Train; return what was warned of the first step, and a hash of what is left."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = train(strategy, **options)
    texts = [str(one.message) for one in caught]
    content = [np.asarray(variable).tobytes() for variable in model.variables]
    content += [repr(np.random.random()).encode()]
    digest = hashlib.sha256(b"".join(content)).hexdigest()
    return [text for text in texts if "irst step" in text], digest


def said_of_programs(names, is_mirrored):
    """Return what is said of each program, and what it leaves."""
    keras.config.set_floatx("float64")
    if is_mirrored:
        tfdist.devices.split("CPU:0", 2)
        strategy = tfdist.strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    else:
        strategy = tfdist.strategies.AllReduceStrategy()
    found = {name: said_of(strategy, PROGRAMS[name]) for name in names}
    with holding(hooks, "note_raw", lambda model: None):
        found[UNNOTED] = said_of(strategy, PROGRAMS["a raw variable"])
    return found


def said_on(size, names, *, is_mirrored):
    """Return what the chief says of each program, and what it leaves."""
    job = cluster(
        said_of_programs,
        size=size,
        args=([*names], is_mirrored),
        timeout_seconds=1200,
    )
    assert "is not checked" not in job.logs[0]
    chief, *others = job.values
    for other in others:
        assert not any(texts for texts, _ in other.values()), "only the chief warns"
    return chief


@pytest.fixture(scope="module")
def said_on_processes():
    return said_on(2, PROGRAMS, is_mirrored=False)


@pytest.fixture(scope="module")
def said_on_devices():
    return said_on(1, OF_DEVICES, is_mirrored=True)


@pytest.fixture(scope="module")
def said_of_a_few():
    return said_on(1, A_FEW, is_mirrored=True)


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("said_on_processes", marks=pytest.mark.slow),
        pytest.param("said_on_devices", marks=pytest.mark.slow),
        "said_of_a_few",
    ],
)
def test_silent_programs_are_named_and_nothing_is_said_of_others(request, place):
    texts = {name: it for name, (it, _) in request.getfixturevalue(place).items()}

    for name, said in texts.items():
        if name in KEEPING:
            assert said == [], name
        else:
            assert len(said) == 1, name
            assert "differs from that of one process" in said[0], name
            assert SILENT.get(name, (None, ""))[1] in said[0], name


def bits_unchecked():
    """Return hashes of what training leaves without a check."""
    keras.config.set_floatx("float64")
    strategy = tfdist.strategies.AllReduceStrategy(check_first_step="off")
    names = ["a queue", *KEEPING]
    return {name: said_of(strategy, PROGRAMS[name])[1] for name in names}


@pytest.mark.slow
def test_the_check_changes_no_bit(said_on_processes):
    hashes, _ = cluster(bits_unchecked, timeout_seconds=1200).values

    for name, digest in hashes.items():
        assert said_on_processes[name][1] == digest, name


def error_of_the_check():
    """Return what "raise" raises, if only for the program that differs."""
    strategy = tfdist.strategies.AllReduceStrategy(check_first_step="raise")
    raised = None
    try:
        train(strategy, **SILENT["a sum"][0])
    except RuntimeError as error:
        raised = str(error)
    train(strategy, **KEEPING["dropout"])
    return raised


def test_the_check_raises_on_all_ranks():
    raised, other = cluster(error_of_the_check, timeout_seconds=1200).values

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
