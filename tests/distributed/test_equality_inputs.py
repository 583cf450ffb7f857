"""The equality matrix: every kind of data, and the losses that depend on it."""

from functools import partial

import numpy as np
import pytest
from equality_matrix import everywhere
from equality_models import (
    BATCH,
    ONE_ROW_LEFT,
    arrays,
    compiled,
    data,
    fit,
    fitting,
    functional,
    sequential,
    stacked,
    state,
    subclassed,
)

import tfdist


def slices(*parts):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(parts)


def unshuffled(x, y):
    return {**arrays(x, y), "shuffle": False}


def dataset(x, y):
    rows = slices(x, y, np.linspace(0.0, 2.0, len(x)))
    return {"x": rows.shuffle(len(x), seed=3).batch(BATCH)}


def dataset_with_remainder_dropped(x, y):
    return {"x": slices(x, y).batch(BATCH, drop_remainder=True)}


def generator(x, y):
    def batches():
        while True:
            for start in range(0, len(x), BATCH):
                yield x[start : start + BATCH], y[start : start + BATCH]

    return {"x": batches(), "steps_per_epoch": -(-len(x) // BATCH)}


def generator_that_ends(x, y):
    parts = range(0, len(x), BATCH)
    batches = ((x[i : i + BATCH], y[i : i + BATCH]) for i in parts)
    return {"x": batches, "epochs": 1}


def py_dataset(x, y, **options):
    import keras

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return -(-len(x) // BATCH)

        def __getitem__(self, index):
            rows = slice(index * BATCH, index * BATCH + BATCH)
            return x[rows], y[rows]

    return {"x": Batches(**options), "shuffle": False}


def words(x):
    """One of four words for each number."""
    return np.array(["low", "under", "over", "high"])[np.digitize(x, [-0.7, 0.0, 0.7])]


def strings(x, y):
    return {"x": slices(words(x), y).batch(BATCH)}


def texts(x, y):
    return {"x": slices([[" ".join(row)] for row in words(x)], y).batch(BATCH)}


def ragged(x, y):
    """Of each row, the signs that come before the first large number."""
    import tensorflow as tf

    rows = [row[: 1 + np.argmax(row > 0.9)] > 0 for row in x]
    tokens = tf.ragged.constant([row.astype("int64").tolist() for row in rows])
    return {"x": slices(tokens, y).batch(BATCH)}


def sparse(x, y):
    return {"x": slices(sparse_arrays(x, y)["x"], y).batch(BATCH)}


def sparse_arrays(x, y):
    import tensorflow as tf

    return arrays(tf.sparse.from_dense(np.maximum(x, 0.0)), y)


def tokens(x, y):
    """Sequences of 0, which is padding, 1 and 2; a class for each place."""
    found = np.digitize(x, [-0.3, 0.8])
    found[-9:] = 0
    return {**arrays(found, (x > 0.5)[..., None].astype("int64")), "shuffle": False}


def tokens_with_weights(x, y):
    return {**tokens(x, y), "sample_weight": np.abs(x)}


def weights(x, y):
    return {**unshuffled(x, y), "sample_weight": np.linspace(0.0, 2.0, len(x))}


def looked_up():
    import keras

    words = keras.Input((8,), dtype="string")
    numbers = keras.layers.StringLookup(vocabulary=["low", "under", "over"])(words)
    vectors = keras.layers.Embedding(4, 3)(numbers)
    flat = keras.layers.Flatten()(vectors)
    return keras.Model(words, keras.layers.Dense(1, activation="sigmoid")(flat))


def vectorised():
    import keras

    layer = keras.layers.TextVectorization(output_sequence_length=8)
    layer.adapt(["low under", "over high", "over low"])
    text = keras.Input((1,), dtype="string")
    vectors = keras.layers.Embedding(6, 3, mask_zero=True)(layer(text))
    mean = keras.layers.GlobalAveragePooling1D()(vectors)
    return keras.Model(text, keras.layers.Dense(1, activation="sigmoid")(mean))


def of_ragged():
    import keras

    class Pooled(keras.Model):
        def __init__(self):
            super().__init__()
            self.vectors = keras.layers.Embedding(2, 3)
            self.classes = keras.layers.Dense(1, activation="sigmoid")

        def call(self, inputs):
            # Not to the longest row of the batch: that is another one on each rank.
            vectors = self.vectors(inputs.to_tensor(shape=(None, 8)))
            return self.classes(keras.ops.mean(vectors, axis=1))

        def build(self, shape):
            self.vectors.build(None)
            self.classes.build((None, 3))

    return Pooled()


def of_sparse():
    import keras

    inputs = keras.Input((8,), sparse=True)
    hidden = keras.layers.Dense(4, activation="tanh")(inputs)
    return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))


def built_by_fit():
    import keras

    return keras.Sequential([keras.layers.Dense(1, activation="sigmoid")])


def with_an_absent_input():
    import keras

    class Added(keras.layers.Layer):
        def call(self, one, other=None):
            return one if other is None else one + other

        def compute_output_spec(self, one, other=None):
            return keras.KerasTensor(one.shape, one.dtype)

    a, b = keras.Input((8,), name="a"), keras.Input((8,), name="b", optional=True)
    outputs = keras.layers.Dense(1, activation="sigmoid")(Added()(a, b))
    return keras.Model({"a": a, "b": b}, outputs)


def absent(x, y):
    return arrays({"a": x, "b": None}, y)


def used(make, feed, **options):
    """Return a row that also evaluates and predicts what it is trained on."""

    def row(strategy):
        given = {**feed(*data()), "verbose": 0}
        with strategy.scope():
            model = compiled(make(), **options)
        found = state(model, model.fit(**given))
        found["evaluate"] = model.evaluate(**given)
        given.pop("y", None)
        return {**found, "predict": model.predict(**given)}

    return row


def predicted_first(strategy):
    """Models whose first use is `predict`, of which one has no weights."""
    import keras

    x, y = data()
    # What a rank draws for itself is not what all begin with.
    keras.utils.set_random_seed(1 + tfdist.rank())
    with strategy.scope():
        models = [
            compiled(subclassed()),
            keras.Sequential([keras.layers.Rescaling(0.5), keras.layers.Flatten()]),
        ]
    found = [model.predict(x, batch_size=BATCH, verbose=0) for model in models]
    keras.utils.set_random_seed(1)
    history = models[0].fit(**unshuffled(x, y), verbose=0)
    return {**state(models[0], history), "first": found}


def several_rows_for_each(strategy):
    """Predictions of two and three rows for each row, some of them ragged."""
    import keras
    import tensorflow as tf

    class Several(keras.Model):
        def build(self, shape):
            self.factor = self.add_weight(shape=(), initializer="ones")

        def call(self, inputs):
            thrice = tf.repeat(inputs * 2.0 * self.factor.value, 3, axis=0)
            lengths = tf.reduce_sum(tf.cast(thrice > 0, tf.int64), 1)
            ragged = tf.RaggedTensor.from_tensor(thrice, lengths)
            return {"b": tf.reshape(inputs, [-1, 4]), "a": [inputs, ragged]}

    with strategy.scope():
        model = Several()
        model.build(None)
    x, y = data(rows=ONE_ROW_LEFT)
    found = {}
    for name, given in {
        "arrays": {"x": x, "batch_size": 32},
        "generator": {"x": generator(x, y)["x"], "steps": 9},
    }.items():
        predicted = model.predict(**given, verbose=0)
        one, ragged = predicted["a"]
        found[name] = [predicted["b"], one, ragged.flat_values, ragged.row_lengths()]
    return found


def with_constants(x, y):
    """Batches with the weights of the classes, and their scale."""
    batches = slices(x, y).batch(5)
    return {"x": batches.map(lambda x, y: ({"x": x}, (y, CLASS_WEIGHTS, 0.5)))}


CLASS_WEIGHTS = [0.5, 3.0, 1.0, 1.0, 1.0]


def by_class():
    """A model whose loss takes weights of classes from the batch."""
    import keras
    import tensorflow as tf

    class Weighted(keras.Model):
        def __init__(self):
            super().__init__()
            self.model = sequential()

        def call(self, inputs):
            return self.model(inputs["x"])

        def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
            y, weights, scale = y if isinstance(y, tuple) else (y, x["z"], 1.0)
            y, weights, scale = (
                tf.cast(value, y_pred.dtype) for value in (y, weights, scale)
            )
            weights = tf.gather(weights, tf.cast(y, tf.int64)) * scale
            return tf.reduce_mean(weights * (y - y_pred) ** 2)

    return Weighted()


def zipped(x, y, **options):
    """Batches of 16 rows with classes beside 24 without, and the classes' weights."""
    import tensorflow as tf

    labelled = slices(x, y).batch(BATCH, **options)
    unlabelled = slices(np.tile(x, (2, 1))[:160] + 1.0).batch(24, **options)

    def with_constant(labelled, unlabelled):
        return labelled, unlabelled[0], CLASS_WEIGHTS

    batches = tf.data.Dataset.zip((labelled, unlabelled.prefetch(1)))
    return batches.map(with_constant).prefetch(1)


def of_zipped(strategy):
    """Train on rows with and without classes, of which one mean is taken."""
    import keras
    import tensorflow as tf

    class Semi(keras.Sequential):
        def train_step(self, data):
            (x, y), unlabelled, weights = data
            with tf.GradientTape() as tape:
                y_pred = self(tf.concat([x, unlabelled], 0), training=True)
                known, guessed = y_pred[: tf.shape(x)[0]], y_pred[tf.shape(x)[0] :]
                errors = (known - tf.cast(y, x.dtype)) ** 2
                errors *= tf.gather(tf.cast(weights, x.dtype), y)
                unsure = guessed * (1.0 - guessed)
                loss = tf.reduce_mean(tf.concat([errors, unsure], 0))
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            return {"loss": loss, "unsure": tf.reduce_mean(unsure)}

    x, y = data()
    with strategy.scope():
        model = compiled(Semi(sequential().layers))
    first = model.fit(zipped(x, y), epochs=2, verbose=0)
    whole = model.fit(zipped(x, y, drop_remainder=True), verbose=0)
    return {**state(model, whole), "first": first.history}


masked = stacked(
    lambda layers: [
        layers.Embedding(3, 4, mask_zero=True),
        layers.Dense(1, activation="sigmoid"),
    ]
)
masked_lstm = stacked(
    lambda layers: [
        layers.Embedding(3, 4, mask_zero=True),
        layers.LSTM(3, return_sequences=True),
        layers.Dense(1, activation="sigmoid"),
    ]
)


def fit_loss(strategy, reduction, model=sequential, feed=arrays, **options):
    """Train on a loss that is reduced in a certain way."""
    import keras

    loss = keras.losses.BinaryCrossentropy(reduction=reduction)
    # A sum over rows is many times as long as a mean.
    optimizer = partial(keras.optimizers.SGD, 0.002)
    return fit(strategy, model, feed, loss=loss, optimizer=optimizer, **options)


MEASURED = {"metrics": ["accuracy"], "weighted_metrics": ["mse"]}
ROWS = {
    "dataset, weights": fitting(feed=dataset),
    "dataset, remainder dropped": fitting(feed=dataset_with_remainder_dropped),
    "generator": fitting(feed=generator),
    "generator that ends": fitting(feed=generator_that_ends),
    "PyDataset, workers": fitting(functional, partial(py_dataset, workers=2)),
    "strings": fitting(looked_up, strings),
    "texts": fitting(vectorised, texts),
    "sparse": used(of_sparse, sparse_arrays),
    "sparse, built by fit": used(built_by_fit, sparse),
    "ragged": used(of_ragged, ragged),
    "absent input": used(with_an_absent_input, absent, loss="ce"),
    "predicted first": predicted_first,
    "masks, LSTM": fitting(masked_lstm, tokens, **MEASURED),
    "reduction mean, masks and weights": partial(
        fit_loss, reduction="mean", model=masked, feed=tokens_with_weights, **MEASURED
    ),
    "reduction sum, weights": partial(fit_loss, reduction="sum", feed=weights),
    "reduction mean_with_sample_weight": partial(
        fit_loss, reduction="mean_with_sample_weight", feed=weights
    ),
    "several rows for each, predicted": several_rows_for_each,
    "constants in the batch": fitting(by_class, with_constants),
    "zipped batches of two lengths": of_zipped,
}
# Of each, another row of `make test` has the subject too.
VARIANTS = [
    "dataset, remainder dropped",
    "generator that ends",
    "texts",
    "reduction mean, masks and weights",
    "sparse, built by fit",
]
# What `make test` runs; the others differ from one of them in less.
QUICK = [
    "generator",
    "PyDataset, workers",
    "ragged",
    "masks, LSTM",
    "reduction sum, weights",
    "several rows for each, predicted",
    "constants in the batch",
    "zipped batches of two lengths",
]


@pytest.mark.parametrize(
    ("row", "column"), everywhere(ROWS, quick=QUICK, variants=VARIANTS)
)
def test_n_processes_end_as_one(cells, column, row):
    cells.check(row, column)
