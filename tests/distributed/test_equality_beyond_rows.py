"""The equality matrix: what belongs to no row, or to the whole batch."""

from functools import partial

import numpy as np
import pytest
from equality_matrix import everywhere
from equality_models import (
    BATCH,
    compiled,
    data,
    fitting,
    large_batches,
    optimizer,
    sequential,
    sgd,
    stacked,
    state,
)


def with_positions(index=(0, 1, 1, 2, 1, 0, 3, 9)):
    """Tables that are looked up by position: up to a length, and by constants.

    Args:
        index: The constants; some more than once, as in Swin transformers.
    """
    import keras
    import tensorflow as tf

    class Positions(keras.layers.Layer):
        def build(self, shape):
            table = {"shape": (10, 4), "initializer": "random_normal"}
            self.fixed, self.known, self.up_to_length = (
                self.add_weight(name=name, **table)
                for name in ("fixed", "known", "up_to_length")
            )
            self.index = self.add_weight(
                shape=(8,), dtype="int32", initializer="zeros", trainable=False
            )
            self.index.assign(index)

        def call(self, words):
            length = keras.ops.shape(words)[-1]
            fixed = keras.ops.take(self.fixed, keras.ops.arange(8), axis=0)
            known = keras.ops.take(self.known, self.index, axis=0)
            up_to_length = keras.ops.take(
                self.up_to_length, tf.range(tf.shape(words)[1]), axis=0
            )
            return fixed[:length] * known[:length] + up_to_length

    words = keras.Input((None,), dtype="int64")
    embedded = keras.layers.Embedding(5, 4)(words) + Positions()(words)
    pooled = keras.layers.GlobalAveragePooling1D()(keras.ops.tanh(embedded))
    return keras.Model(words, keras.layers.Dense(1, activation="sigmoid")(pooled))


def with_one_table():
    """A table that is looked up by words, by position and by constants."""
    import keras
    import tensorflow as tf

    class Shared(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.table = keras.layers.Embedding(9, 4)

        def call(self, words):
            positions = self.table(tf.range(tf.shape(words)[1]))
            known = self.table(np.array([0, 5, 2, 5]))
            return self.table(words) * positions + keras.ops.mean(known, axis=0)

    words = keras.Input((None,), dtype="int64")
    pooled = keras.layers.GlobalAveragePooling1D()(Shared()(words))
    return keras.Model(words, keras.layers.Dense(1, activation="sigmoid")(pooled))


def as_words(x, y):
    return {**large_batches((np.abs(x) * 2).astype("int64") % 5, y)}


def by_position_alone():
    """Positions of an eager step, which cannot see where indices come from."""
    import keras

    class Added(keras.layers.Layer):
        def build(self, shape):
            self.table = self.add_weight(shape=(9, 1), initializer="random_normal")

        def call(self, x):
            return x + keras.ops.take(self.table, keras.ops.arange(8), axis=0)[:, 0]

    return stacked(lambda layers: [Added(), layers.Dense(1, "sigmoid")])()


def divided_by_the_global_batch():
    """The losses of TensorFlow's guides to distributed training."""
    import keras
    import tensorflow as tf

    class Own(keras.Sequential):
        def train_step(self, batch):
            x, y = batch
            y = tf.cast(y, x.dtype)
            with tf.GradientTape() as tape:
                errors = tf.reduce_sum((self(x, training=True) - y) ** 2, axis=1)
                # TensorFlow gives weighted losses the type float32.
                loss = tf.nn.compute_average_loss(errors, global_batch_size=BATCH)
                loss += 0.1 * tf.nn.compute_average_loss(errors)
                norms = [tf.nn.l2_loss(v) for v in self.trainable_variables]
                loss += tf.nn.scale_regularization_loss(norms)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    return Own(sequential().layers)


def with_losses_by_row():
    """Losses that a layer adds: sums over rows, and beside them means and norms."""
    import keras

    class Added(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=(8,), initializer="ones")

        def call(self, x):
            rows = 0.01 * (x * self.scale) ** 2
            self.add_loss(keras.ops.sum(rows, axis=1))
            self.add_loss(keras.ops.sum(rows, axis=1, keepdims=True))
            self.add_loss(keras.ops.mean(rows, axis=0))
            self.add_loss(0.01 * self.scale**2)
            return x * self.scale

    return stacked(lambda layers: [Added(), layers.Dense(1, "sigmoid")])()


def with_variables_of_tensorflow(strategy):
    """Variables that Keras does not know, assigned before and after the update."""
    import keras
    import tensorflow as tf

    class Own(keras.Sequential):
        def __init__(self, layers):
            super().__init__(layers)
            self.shift = tf.Variable(tf.zeros(8, tf.float64))
            self.before = tf.Variable(0.3, trainable=False, dtype=tf.float64)
            self.after = tf.Variable(0.0, trainable=False, dtype=tf.float64)
            self.rows = tf.Variable(tf.zeros((2, 8), tf.float64), trainable=False)
            self.halved = tf.Variable(1.0, trainable=False, dtype=tf.float64)

        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                x = x + self.shift + self.after + tf.reduce_sum(self.rows, 0)
                y_pred = self(x, training=True)
                loss = self.compute_loss(x, y, y_pred * (1.0 - self.before))
            gradients, of_shift = tape.gradient(
                loss, (self.trainable_variables, self.shift)
            )
            accuracy = tf.reduce_mean(tf.cast(y_pred > 0.5, tf.float64))
            known = 0.9 * self.before + 0.1 * accuracy
            self.before.assign(tf.clip_by_value(known, 0.0, 0.9))
            self.shift.assign_sub(0.1 * of_shift)
            self.optimizer.apply(gradients, self.trainable_variables)
            self.after.assign_add(0.01 * tf.reduce_mean(x))
            mean = 0.1 * tf.reduce_mean(batch[0], 0)
            if isinstance(self.rows, tf.distribute.DistributedValues):
                # TensorFlow has nothing else for these.
                self.rows.assign(tf.stack([mean, -0.5 * mean]))
            else:
                self.rows.scatter_nd_update(indices=[[0]], updates=[mean])
                self.rows[1].assign(-0.5 * mean)
            # Often on some ranks only.
            is_large = tf.reduce_mean(batch[0]) > 0.0
            tf.cond(is_large, self.halve, lambda: None)
            return {"loss": loss}

        def halve(self):
            self.halved.assign(self.halved / 2)

    x, y = data(97)
    with strategy.scope():
        model = compiled(Own(sequential().layers), sgd)
    history = model.fit(**large_batches(x, y), epochs=2, verbose=0)
    raw = [v.numpy() for v in (model.shift, model.before, model.after, model.rows)]
    return {**state(model, history), "raw": raw, "agreed": model.halved.numpy()}


def accumulated_by_hand(strategy):
    """Gradients that a step adds up in a list, and a mean in a dictionary."""
    import keras
    import tensorflow as tf

    class Accumulating(keras.Sequential):
        def __init__(self, layers):
            super().__init__(layers)
            self.sums = [tf.Variable(tf.zeros_like(w)) for w in self.weights]
            self.means = {"x": (tf.Variable(tf.zeros(8, tf.float64)),)}
            self.steps = tf.Variable(0)

        def train_step(self, batch):
            x, y = batch
            (mean,) = self.means["x"]
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x - mean, training=True))
            mean.assign(0.5 * mean + 0.5 * tf.reduce_mean(x, 0))
            gradients = tape.gradient(loss, self.trainable_variables)
            for total, gradient in zip(self.sums, gradients, strict=True):
                total.assign_add(gradient)
            self.steps.assign_add(1)
            tf.cond(self.steps % 2 == 0, self.update, lambda: None)
            return {"loss": loss}

        def update(self):
            self.optimizer.apply(self.sums, self.trainable_variables)
            for total in self.sums:
                total.assign(tf.zeros_like(total))

    x, y = data(97)
    with strategy.scope():
        model = compiled(Accumulating(sequential().layers), sgd)
    history = model.fit(**large_batches(x, y), epochs=2, verbose=0)
    raw = [*model.sums, *model.means["x"]]
    return {**state(model, history), "raw": [v.numpy() for v in raw]}


accumulated = optimizer("SGD", 0.1, gradient_accumulation_steps=2)


def averaging(strategy):
    """A mean in a variable that Keras does not know, while gradients accumulate."""
    import keras
    import tensorflow as tf

    class Averaging(keras.Sequential):
        def __init__(self, layers):
            super().__init__(layers)
            self.mean = tf.Variable(tf.zeros(8, tf.float64))

        def train_step(self, batch):
            self.mean.assign(0.5 * self.mean + 0.5 * tf.reduce_mean(batch[0], 0))
            return super().train_step(batch)

    x, y = data(97)
    with strategy.scope():
        model = compiled(Averaging(sequential().layers), accumulated)
    history = model.fit(**large_batches(x, y), epochs=2, verbose=0)
    return {**state(model, history), "raw": model.mean.numpy()}


def updated_by_hand(strategy, optimizer=sgd):
    """Weights that the step updates itself, all but one if gradients accumulate."""
    import keras
    import tensorflow as tf

    class Updating(keras.Sequential):
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            *weights, last = self.trainable_variables
            *gradients, of_last = tape.gradient(loss, [*weights, last])
            if self.optimizer.gradient_accumulation_steps:
                self.optimizer.apply([of_last], [last])
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.assign_sub(0.1 * gradient)
            return {"loss": loss}

    x, y = data(97)
    with strategy.scope():
        model = compiled(Updating(sequential().layers), optimizer)
    return state(model, model.fit(**large_batches(x, y), epochs=2, verbose=0))


ROWS = {
    "positions": fitting(
        with_positions, as_words, optimizer=optimizer("Adam", clipnorm=0.1)
    ),
    "one table for words and positions": fitting(with_one_table, as_words),
    "positions, eagerly": fitting(
        by_position_alone, large_batches, optimizer=optimizer("Adagrad"), run_eagerly=1
    ),
    "losses over the global batch size": fitting(
        divided_by_the_global_batch, optimizer=sgd
    ),
    "losses added for each row": fitting(
        with_losses_by_row, rows=97, feed=large_batches, optimizer=sgd
    ),
    "variables of TensorFlow": with_variables_of_tensorflow,
    "gradients accumulated by hand": accumulated_by_hand,
    "a mean beside accumulated gradients": averaging,
    "weights updated by hand": updated_by_hand,
    "weights updated by hand, others accumulated": partial(
        updated_by_hand, optimizer=accumulated
    ),
}
# What `make test` runs; the others differ from one of them in less.
QUICK = [
    "positions",
    "losses over the global batch size",
    "variables of TensorFlow",
    "gradients accumulated by hand",
]


@pytest.mark.parametrize(
    ("row", "column"),
    # Its step changes variables itself, which central storage refuses.
    everywhere(
        ROWS,
        quick=QUICK,
        not_central=[
            "variables of TensorFlow",
            "gradients accumulated by hand",
            "weights updated by hand",
            "weights updated by hand, others accumulated",
        ],
        on_devices=["a mean beside accumulated gradients"],
    ),
)
def test_n_processes_end_as_one(cells, column, row):
    cells.check(row, column)
