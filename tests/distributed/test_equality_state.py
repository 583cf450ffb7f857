"""The equality matrix: what models carry beside weights, and random numbers."""

import numpy as np
import pytest
from equality_matrix import everywhere, on_processes
from equality_models import (
    ONE_ROW_LEFT,
    arrays,
    compiled,
    data,
    fitting,
    large_batches,
    optimizer,
    sgd,
    stacked,
    state,
    unchecked,
    wait_for_chief,
)

normalised = stacked(
    lambda layers: [
        layers.BatchNormalization(momentum=0.9),
        layers.Dense(6, activation="tanh"),
        layers.BatchNormalization(momentum=0.9),
        layers.Dense(1, activation="sigmoid"),
    ]
)
normalised_inputs = stacked(
    lambda layers: [
        layers.BatchNormalization(momentum=0.9),
        layers.Dense(1, activation="sigmoid"),
    ]
)
dropped_out = stacked(
    lambda layers: [
        layers.Dense(6, activation="tanh"),
        layers.Dropout(0.5),
        layers.GaussianNoise(0.1),
        layers.Dense(1, activation="sigmoid"),
    ]
)


synchronised = stacked(
    lambda layers: [
        layers.BatchNormalization(momentum=0.7, synchronized=True),
        layers.Dense(6, activation="tanh"),
        layers.BatchNormalization(momentum=0.7, synchronized=True),
        layers.Dense(1, activation="sigmoid"),
    ]
)
accumulated = optimizer("SGD", 0.3, gradient_accumulation_steps=3)


def single_rows(x, y):
    """Batches of 32 rows and, within the epoch too, of a single one."""
    import tensorflow as tf

    return {"x": tf.data.Dataset.from_tensor_slices((x, y)).batch(32).repeat(2)}


def distilled():
    """A model with a moving average of itself, and a factor that shrinks each step."""
    import keras
    import tensorflow as tf

    class Distilled(keras.Model):
        def __init__(self):
            super().__init__()
            self.student = synchronised()
            self.teacher = keras.models.clone_model(self.student)
            self.teacher.trainable = False
            self.factor = self.add_weight(initializer="ones", trainable=False)

        def call(self, inputs, training=False):
            return self.student(inputs, training=training)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self.student(x, training=True)
                far = tf.reduce_mean(tf.square(y_pred - self.teacher(x)))
                loss = self.compute_loss(x, y, y_pred) + self.factor * far
            variables = self.student.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            self.factor.assign(0.9 * self.factor)
            pairs = zip(self.student.variables, self.teacher.variables, strict=True)
            for new, mean in pairs:
                mean.assign(0.7 * mean + 0.3 * new)
            return self.compute_metrics(x, y, y_pred)

    return Distilled()


def unfrozen(strategy):
    """Two fits; what the first leaves frozen stands before the state that it has."""
    import keras

    x, y = data(ONE_ROW_LEFT)
    with strategy.scope():
        base, head = normalised_inputs(), synchronised()
        base.trainable = False
        head.pop()
        layers = [keras.Input((8,)), base, keras.layers.Dense(8, "tanh"), head]
        layers += [keras.layers.Dense(1, "sigmoid")]
        model = compiled(keras.Sequential(layers), optimizer=accumulated)
    model.fit(**large_batches(x, y), verbose=0)
    first = model.get_weights()
    with strategy.scope():
        base.trainable = True
        compiled(model, optimizer=accumulated)
    model.fit(**large_batches(x, y), verbose=0)
    # What the base sees depends on no weight.
    mean = np.array(base.layers[0].moving_mean)
    return {"first": first, "mean": mean, "agreed": state(model)}


def counting():
    """A model with variables of its own: steps, and the mean of what came in."""
    import keras

    class Counting(keras.layers.Layer):
        def build(self, shape):
            options = {"initializer": "zeros", "trainable": False}
            self.steps = self.add_weight(shape=(), dtype="int64", **options)
            self.mean = self.add_weight(shape=(8,), **options)

        def call(self, inputs, training=False):
            if training:
                self.steps.assign(self.steps + 1)
                mean = keras.ops.mean(inputs, axis=0)
                self.mean.assign(0.9 * self.mean + 0.1 * mean)
            return inputs

    return keras.Sequential(
        [keras.Input((8,)), Counting(), keras.layers.Dense(1, activation="sigmoid")]
    )


def with_moving_statistics(strategy):
    """BatchNormalization by each rank's rows; the statistics are of all ranks."""
    import keras

    seen = []
    x, y = data(ONE_ROW_LEFT)
    with strategy.scope():
        model = compiled(normalised())
    at_ends = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(model.get_weights())
    )
    model.fit(
        **large_batches(x, y),
        validation_data=(x[:37], y[:37]),
        epochs=2,
        callbacks=[at_ends],
        verbose=0,
    )
    fitted = model.get_weights()
    evaluated = model.evaluate(x, y, verbose=0)
    model.save("statistics.keras")
    wait_for_chief(strategy)
    file = keras.models.load_model("statistics.keras").get_weights()
    return {
        # Those of what comes in, which depend on no weight.
        "moving mean": np.array(model.layers[0].moving_mean),
        "agreed": {
            "epochs": seen,
            "fitted": fitted,
            "evaluated": evaluated,
            "weights": model.get_weights(),
            "file": file,
        },
    }


def masks(strategy):
    """What dropout lets through, by step."""
    import keras

    drawn = []

    class Watched(keras.layers.Dropout):
        def call(self, inputs, training=False):
            outputs = super().call(inputs, training=training)
            if training and hasattr(outputs, "numpy"):
                drawn.append(outputs.numpy() != 0)
            return outputs

    x, y = data(96)
    with strategy.scope():
        layers = [keras.Input((8,)), Watched(0.5), keras.layers.Dense(1, "sigmoid")]
        model = compiled(keras.Sequential(layers), run_eagerly=True)
    # The check of the first step would draw too.
    with unchecked(strategy):
        model.fit(**arrays(x, y), verbose=0)
    return {
        "seed": np.array(model.layers[0].seed_generator.state),
        "agreed": model.get_weights(),
        "by_rank": drawn,
    }


def twice_from_one_seed(strategy):
    """The same training from the same seed, and one from another."""
    import keras

    class Drawn(keras.layers.Layer):
        """Noise that is kept, drawn from a generator that no layer has."""

        def build(self, shape):
            self.noise = self.add_weight(shape=(shape[-1],), trainable=False)

        def call(self, inputs, training=False):
            if training:
                self.noise.assign(keras.random.normal(self.noise.shape))
            return inputs + 0.1 * self.noise

    x, y = data()
    ends = []
    for seed in (5, 5, 6):
        keras.utils.set_random_seed(seed)
        with strategy.scope():
            noisy = keras.Sequential([keras.Input((8,)), Drawn(), dropped_out()])
            model = compiled(noisy)
        model.fit(**arrays(x, y), epochs=2, verbose=0)
        ends.append(model.get_weights())
    return {"agreed": ends}


def restarted(strategy):
    """Three epochs in one go; and two, a file, and the third."""
    import keras

    x, y = data()
    feed = {**arrays(x, y), "shuffle": False, "verbose": 0}
    with strategy.scope():
        model = compiled(normalised_inputs())
        again = compiled(keras.models.clone_model(model))
        again.set_weights(model.get_weights())
    model.fit(**feed, epochs=3)
    again.fit(**feed, epochs=2)
    again.save("restart.keras")
    wait_for_chief(strategy)
    with strategy.scope():
        again = keras.models.load_model("restart.keras")
    again.fit(**feed, initial_epoch=2, epochs=3)
    return {"agreed": {"first": state(model), "second": state(again)}}


ROWS = {
    "masks of dropout": masks,
    "variables of a layer": fitting(counting),
    "accumulated moving statistics": fitting(
        synchronised, single_rows, rows=ONE_ROW_LEFT, optimizer=accumulated
    ),
    "unfrozen": unfrozen,
    "restarted": restarted,
    "moving statistics, one row left": with_moving_statistics,
    "teacher": fitting(distilled, single_rows, rows=ONE_ROW_LEFT, optimizer=sgd),
    "twice from one seed": twice_from_one_seed,
    "teacher, accumulated": fitting(distilled, optimizer=accumulated),
    "variables of a layer, accumulated": fitting(counting, optimizer=accumulated),
}


def assert_same(one, other, rtol=0.0):
    """Compare lists of arrays."""
    for array, right in zip(one, other, strict=True):
        np.testing.assert_allclose(array, right, rtol=rtol, atol=rtol)


# Of each, another row of `make test` has the subject too.
VARIANTS = [
    "twice from one seed",
    "teacher, accumulated",
]


# Their steps assign weights, which central storage keeps once.
NOT_CENTRAL = ["teacher", "teacher, accumulated"]
# What `make test` runs; the others differ from one of them in less.
QUICK = [
    "masks of dropout",
    "variables of a layer",
    "restarted",
    "moving statistics, one row left",
]


@pytest.mark.parametrize(
    ("row", "column"),
    everywhere(ROWS, quick=QUICK, variants=VARIANTS, not_central=NOT_CENTRAL),
)
def test_n_processes_end_as_one(cells, column, row):
    cells.check(row, column)


@pytest.mark.parametrize(
    ("row", "column"),
    on_processes(ROWS, ["moving statistics, one row left"], quick=QUICK),
)
def test_the_file_holds_the_statistics_of_every_rank(cells, column, row):
    for ended in cells.by_rank(row, column):
        assert_same(ended["agreed"]["file"], ended["agreed"]["weights"])
        assert_same(ended["agreed"]["epochs"][-1], ended["agreed"]["weights"])


@pytest.mark.parametrize(
    ("row", "column"), on_processes(ROWS, ["masks of dropout"], quick=QUICK)
)
def test_each_rank_drops_other_units(cells, column, row):
    by_rank = [ended["by_rank"] for ended in cells.by_rank(row, column)]

    for drawn in zip(*by_rank, strict=True):
        rows = min(len(mask) for mask in drawn)
        assert len({mask[:rows].tobytes() for mask in drawn}) == len(drawn)


@pytest.mark.parametrize(
    ("row", "column"),
    on_processes(ROWS, ["twice from one seed"], quick=QUICK, variants=VARIANTS),
)
def test_one_seed_gives_one_training(cells, column, row):
    # What Horovod fuses depends on time, and with it the order in which three add up.
    rtol = 1e-12 if column == 3 else 0.0
    for ended in cells.by_rank(row, column):
        first, second, other = ended["agreed"]
        assert_same(first, second, rtol)
        assert not np.allclose(first[0], other[0])


@pytest.mark.parametrize(
    ("row", "column"), on_processes(ROWS, ["restarted"], quick=QUICK)
)
def test_a_restart_changes_nothing(cells, column, row):
    for ended in cells.by_rank(row, column):
        first, second = ended["agreed"]["first"], ended["agreed"]["second"]
        assert_same(first["weights"], second["weights"], rtol=1e-12)
        one, other = first["optimizer"], second["optimizer"]
        assert_same(one.values(), other.values(), rtol=1e-12)
