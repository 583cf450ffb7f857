"""The equality matrix: programs as users write them, after Keras's own examples."""

import numpy as np
import pytest
from equality_matrix import everywhere
from equality_models import (
    arrays,
    compiled,
    data,
    fit,
    fitting,
    in_float32,
    large_batches,
    optimizer,
    sequential,
    sgd,
)


def clipping():
    """An optimizer that clips in a method of its own."""
    import keras

    class Clipping(keras.optimizers.SGD):
        def apply(self, grads, trainable_variables=None):
            clipped = [keras.ops.clip(gradient, -0.01, 0.01) for gradient in grads]
            super().apply(clipped, trainable_variables)

    return Clipping(1.0)


def normalizing():
    """An optimizer with a step of its own, and with options of Keras's."""
    import keras

    class Normalizing(keras.optimizers.Optimizer):
        def build(self, variables):
            super().build(variables)
            self.momentums = self.add_optimizer_variables(variables, "momentum")

        def update_step(self, gradient, variable, learning_rate):
            momentum = self.momentums[self._get_variable_index(variable)]
            step = gradient / (1e-3 + keras.ops.norm(gradient))
            self.assign(momentum, 0.9 * momentum + step)
            self.assign_sub(variable, learning_rate * momentum)

    return Normalizing(0.01, weight_decay=0.01, use_ema=True, ema_momentum=0.9)


def noisy():
    """An optimizer that clips, as Keras would, and adds noise to each update."""
    import keras
    import tensorflow as tf

    class Noisy(keras.optimizers.SGD):
        def build(self, variables):
            super().build(variables)
            self.seeds = keras.random.SeedGenerator(5)

        def _clip_gradients(self, grads):
            return tf.clip_by_global_norm(grads, 0.1)[0]

        def update_step(self, gradient, variable, learning_rate):
            noise = keras.random.normal(
                gradient.shape, dtype="float32", seed=self.seeds
            )
            noisy = gradient + 0.01 * keras.ops.cast(noise, gradient.dtype)
            super().update_step(noisy, variable, learning_rate)

    return Noisy(0.1)


def with_rate_of_the_loss():
    """A model whose step sets the learning rate by the loss of its batch."""
    import keras
    import tensorflow as tf

    class Rated(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            weights = self.trainable_variables
            self.optimizer.learning_rate.assign(0.1 * loss)
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            return {"loss": loss}

    return Rated(sequential().layers)


def with_a_step(gradients_of, by_row=False, in_vector=False):
    """Return what makes a model whose step computes gradients by a function."""

    def make():
        import keras
        import tensorflow as tf

        class Own(keras.Sequential):
            def train_step(self, data):
                x, y = data

                def compute():
                    with tf.GradientTape() as tape:
                        y_pred = self(x, training=True)
                        if by_row:
                            loss = (tf.cast(y, y_pred.dtype) - y_pred) ** 2
                        else:
                            loss = self.compute_loss(x, y, y_pred)
                        if in_vector:
                            loss = tf.reshape(loss, [1])
                    return loss, tape.gradient(loss, self.trainable_variables)

                loss, gradients = gradients_of(compute, self.trainable_variables)
                self.optimizer.apply(gradients, self.trainable_variables)
                return {"loss": tf.reduce_mean(loss)}

        return Own(sequential().layers)

    return make


def sharpness_aware(compute, variables):
    """Take the gradient a step uphill, as sharpness-aware minimization does."""
    import tensorflow as tf

    loss, own = compute()
    gradients = tf.distribute.get_replica_context().all_reduce("MEAN", own)
    norm = tf.linalg.global_norm(gradients)
    uphill = [0.05 * gradient / norm for gradient in gradients]
    for variable, step in zip(variables, uphill, strict=True):
        variable.assign_add(step)
    _, gradients = compute()
    for variable, step in zip(variables, uphill, strict=True):
        variable.assign_sub(step)
    return loss, gradients


def words(x, y):
    """Sequences of five words, and the next word for each; some are not to count."""
    found = np.digitize(x, [-1.0, -0.3, 0.3, 1.0])
    return {**large_batches(found[:, :-1], found[:, 1:]), "shuffle": False}


def language_model():
    """Causal attention, and one table for words that come in and that go out."""
    import keras

    inputs = keras.Input((7,), dtype="int64")
    table = keras.layers.Embedding(5, 4)
    vectors = table(inputs)
    attended = keras.layers.MultiHeadAttention(2, 2)(
        vectors, vectors, use_causal_mask=True
    )
    hidden = keras.layers.LayerNormalization()(vectors + attended)
    return keras.Model(inputs, hidden @ keras.ops.transpose(table.embeddings))


def ignoring(strategy):
    """A loss that does not count a class, so that rows weigh differently."""
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    return fit(strategy, language_model, words, rows=97, loss=loss)


def adapted(strategy):
    """Preprocessing that looks at the data within the scope."""
    import keras

    def make():
        x, _ = data()
        numbers = keras.layers.Normalization()
        numbers.adapt(x)
        # It makes variables of TensorFlow's.
        signs = keras.layers.IntegerLookup(output_mode="tf_idf")
        signs.adapt((x > 0).astype("int64"))
        inputs = keras.Input((8,))
        sign = signs(keras.ops.cast(inputs > 0, "int64"))
        both = keras.layers.Concatenate()([numbers(inputs), sign])
        return keras.Model(inputs, keras.layers.Dense(1)(both))

    return fit(strategy, make, loss="mse", then=["evaluate", "predict"])


def averaging(strategy):
    """A loss that divides by running means of its own."""
    import keras
    import tensorflow as tf

    class Averaging(keras.losses.Loss):
        def __init__(self):
            super().__init__()
            self.mean = keras.Variable(1.0, trainable=False, dtype="float64")
            self.raw = tf.Variable(1.0, trainable=False, dtype="float64")

        def call(self, y_true, y_pred):
            errors = keras.losses.mean_squared_error(y_true, y_pred)
            errors /= self.mean * self.raw
            for mean in (self.mean, self.raw):
                new = 0.9 * mean + 0.1 * keras.ops.mean(errors)
                mean.assign(keras.ops.stop_gradient(new))
            return errors

    with strategy.scope():
        loss = Averaging()
    found = fit(strategy, loss=loss, rows=96)
    return {**found, "means": [loss.mean.numpy(), loss.raw.numpy()]}


def unfreezing(strategy):
    """A callback that unfreezes a layer and compiles anew."""
    import keras

    class Unfreeze(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.model.layers[0].trainable = True
                compiled(self.model, optimizer("SGD", 0.1, momentum=0.9))
                self.model.make_train_function(force=True)

    def frozen():
        model = sequential()
        model.layers[0].trainable = False
        return model

    def feed(x, y):
        return {**arrays(x, y), "epochs": 3, "callbacks": [Unfreeze()]}

    return fit(strategy, frozen, feed)


def asserting():
    """A model with two updates in a step, and assertions before each sum over ranks."""
    import keras
    import tensorflow as tf

    class Asserting(keras.layers.Layer):
        def call(self, inputs):
            known = tf.numpy_function(lambda x: x, [inputs], inputs.dtype)
            known = tf.ensure_shape(known, inputs.shape)
            largest = tf.reduce_max(tf.abs(inputs))
            most = tf.debugging.assert_less(largest, tf.cast(1e6, inputs.dtype))
            with tf.control_dependencies([most]):
                # Numbers from Python have no gradient.
                return inputs + tf.stop_gradient(known - inputs)

    class Twice(keras.Sequential):
        def train_step(self, data):
            x, y = data
            for _ in range(2):
                with tf.GradientTape() as tape:
                    loss = self.compute_loss(x, y, self(x, training=True))
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    return Twice(
        [
            keras.Input((8,)),
            keras.layers.Dense(6, activation="tanh"),
            Asserting(),
            keras.layers.BatchNormalization(synchronized=True),
            Asserting(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


ROWS = {
    "apply of a user's own": fitting(optimizer=clipping),
    "update_step of a user's own": fitting(optimizer=normalizing),
    "sharpness-aware": fitting(
        with_a_step(sharpness_aware), large_batches, rows=97, optimizer=optimizer("SGD")
    ),
    "causal attention, ignore_class": ignoring,
    "adapted in the scope": adapted,
    "loss with a running mean": averaging,
    "compiled by a callback": unfreezing,
    "a loss for each row, in a step of its own": fitting(
        with_a_step(lambda compute, _: compute(), by_row=True),
        large_batches,
        rows=97,
        optimizer=optimizer("SGD", 0.001),
    ),
    "a loss in a vector": fitting(
        with_a_step(lambda compute, _: compute(), in_vector=True),
        optimizer=optimizer("SGD", 0.1),
    ),
    "assertions around two updates": fitting(asserting, large_batches, rows=97),
    "noise and a clip of a user's own": fitting(optimizer=noisy),
    "a learning rate by the loss": in_float32(
        fitting(with_rate_of_the_loss, large_batches, rows=97, optimizer=sgd)
    ),
}
# What `make test` runs; the others differ from one of them in less.
QUICK = [
    "apply of a user's own",
    "adapted in the scope",
    "compiled by a callback",
    "a loss for each row, in a step of its own",
    "noise and a clip of a user's own",
    "a learning rate by the loss",
]


@pytest.mark.parametrize(
    ("row", "column"),
    # Its step changes weights, which central storage refuses.
    everywhere(
        ROWS,
        quick=QUICK,
        not_central=["sharpness-aware"],
        on_devices=["assertions around two updates"],
    ),
)
def test_n_processes_end_as_one(cells, column, row):
    cells.check(row, column)
