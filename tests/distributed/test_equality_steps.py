"""The equality matrix: steps and models that do more by themselves."""

import pytest
from equality_matrix import everywhere
from equality_models import (
    BATCH,
    EPOCHS,
    ONE_ROW_LEFT,
    compiled,
    data,
    fit,
    fitting,
    large_batches,
    optimizer,
    sequential,
    sgd,
    state,
    unchecked,
)

import tfdist


def is_rank(number):
    """Say whether this is that rank; the only process there is counts as each."""
    return tfdist.size() == 1 or tfdist.rank() == number


def squared_errors(model, data):
    """Take the gradient of the mean squared error."""
    import tensorflow as tf

    x, y = data
    with tf.GradientTape() as tape:
        y_pred = model(x, training=True)
        loss = tf.reduce_mean(tf.square(y_pred - tf.cast(y, y_pred.dtype)))
    return loss, tape.gradient(loss, model.trainable_variables)


def with_a_function_for_a_step():
    model = sequential()

    def step(data):
        loss, gradients = squared_errors(model, data)
        model.optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        return {"squared error": loss}

    model.train_step = step
    return model


def compiled_twice(strategy):
    """Two fits of a layer whose call is a function of TensorFlow, traced before."""
    import keras
    import tensorflow as tf

    class Normalised(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.norm = keras.layers.BatchNormalization(synchronized=True)

        def build(self, shape):
            self.norm.build(shape)

        @tf.function
        def call(self, inputs, training=False):
            return self.norm(inputs, training=training)

    x, y = data()
    with strategy.scope():
        layers = [keras.Input((8,)), Normalised(), *sequential().layers]
        model = compiled(keras.Sequential(layers))
    model(x)
    model.fit(**large_batches(x, y), verbose=0)
    with strategy.scope():
        compiled(model, optimizer=sgd)
    return state(model, model.fit(**large_batches(x, y), verbose=0))


def with_metrics_of_its_own():
    import keras
    import tensorflow as tf

    class Measured(keras.Sequential):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            found = super().compute_metrics(x, y, y_pred, sample_weight)
            return {**found, "mean": tf.reduce_mean(y_pred)}

    return Measured(sequential().layers)


def with_a_sum_of_losses():
    import keras

    class Summed(keras.Sequential):
        def __init__(self, layers):
            super().__init__(layers)
            self.total = keras.metrics.Sum(name="total")

        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            self.total.update_state(loss)
            return loss

    return Summed(sequential().layers)


def each_row_its_loss():
    import keras

    return keras.losses.BinaryCrossentropy(reduction="none")


def small_steps():
    import keras

    return keras.optimizers.SGD(0.01)


def halved_by_a_callback(x, y):
    """Weights that a callback of the chief's changes when the training begins."""
    import keras

    class Halve(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            if is_rank(0):
                kernel = self.model.trainable_variables[0]
                kernel.assign(kernel / 2)

    return {**large_batches(x, y), "callbacks": [Halve()]}


def losses_row_by_row(strategy):
    return fit(
        strategy, feed=large_batches, loss=each_row_its_loss(), optimizer=small_steps
    )


def alone_in_between(strategy):
    """One rank predicts and tests a batch by itself, between two calls of `fit`."""
    import keras
    from equality_models import compiled, data, state

    x, y = data()
    with strategy.scope():
        model = compiled(sequential(), optimizer=sgd)
    model.fit(x, y, batch_size=32, verbose=0)
    compiled(model, optimizer=sgd)
    if is_rank(0):
        model.predict_on_batch(x[:5])
        model.test_on_batch(x[:7], y[:7])
    keras.utils.set_random_seed(2)
    return state(model, model.fit(x, y, batch_size=32, verbose=0))


def made_by_the_step(strategy):
    """A layer that training alone uses, on ranks that draw other first weights."""
    import keras

    class Helped(keras.Sequential):
        def __init__(self, layers):
            super().__init__(layers)
            self.helper = keras.layers.Dense(1, trainable=False)

        def call(self, inputs, training=False):
            outputs = super().call(inputs)
            return outputs * self.helper(inputs) if training else outputs

    keras.utils.set_random_seed(1 + tfdist.rank())
    found = fit(strategy, lambda: Helped(sequential().layers), large_batches)
    return {"agreed": found}


def normalized_here_and_there(strategy):
    """Statistics that rank 0 alone takes, because it alone goes through the layer."""
    import keras

    class Choosing(keras.Sequential):
        def __init__(self, layers):
            super().__init__(layers)
            self.norm = keras.layers.BatchNormalization()

        def build(self, input_shape=None):
            super().build(input_shape)
            if input_shape is not None:
                self.norm.build(input_shape)

        def call(self, inputs, training=False):
            if is_rank(0) or not training:
                inputs = self.norm(inputs, training=training)
            return super().call(inputs)

    def make():
        model = Choosing(sequential().layers)
        model.build((None, 8))
        return model

    # The check of the first step finds that it differs from that of one process.
    with unchecked(strategy):
        return {"agreed": fit(strategy, make, large_batches, run_eagerly=True)}


def without_call():
    """Steps that call a part of the model, which itself has no `call`."""
    import keras

    class Whole(keras.Model):
        def __init__(self, part):
            super().__init__()
            self.part = part

        def train_step(self, data):
            loss, gradients = squared_errors(self.part, data)
            self.optimizer.apply(gradients, self.part.trainable_variables)
            return self.measured(data, loss)

        def test_step(self, data):
            return self.measured(data, squared_errors(self.part, data)[0])

        def measured(self, data, loss):
            self._loss_tracker.update_state(loss)
            return self.compute_metrics(*data, self.part(data[0]))

        def predict_step(self, data):
            return self.part(keras.utils.unpack_x_y_sample_weight(data)[0])

    return Whole(sequential())


def with_other_inputs():
    """A `call` that does not take what the step does."""
    whole = type(without_call())

    class Other(whole):
        def call(self, inputs):
            return self.part(inputs["latent"])

    return Other(sequential())


def with_another_batch():
    """A step that changes the rows, and trains a layer that `call` does not have."""
    import keras
    import tensorflow as tf

    class Encoder(keras.Model):
        def __init__(self):
            super().__init__()
            self.encoder = keras.layers.Dense(4, "tanh")
            self.decoder = keras.layers.Dense(1)

        def call(self, inputs):
            return self.encoder(inputs)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self.decoder(self(x[:, 1:], training=True))
                loss = tf.reduce_mean(tf.square(y_pred - tf.cast(y, y_pred.dtype)))
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            return {"loss": loss}

    return Encoder()


def penalty(discriminator, rows):
    """Return how far the norms of a model's gradients by its inputs are from one."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(rows)
        found = discriminator(rows)
    norms = tf.norm(tape.gradient(found, rows), axis=1)
    return tf.reduce_mean((norms - 1.0) ** 2)


def gan():
    """Two models that each have an optimizer, and a penalty on a gradient.

    The model that has both has no optimizer and no metrics of its own.
    """
    import keras
    import tensorflow as tf

    class Gan(keras.Model):
        def __init__(self):
            super().__init__()
            layers = [keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(8)]
            self.generator = keras.Sequential(layers)
            self.discriminator = sequential()
            self.first, self.second = (
                keras.optimizers.Adam(0.01),
                keras.optimizers.SGD(),
            )
            self.loss_of = keras.losses.BinaryCrossentropy()
            self.means = [keras.metrics.Mean(name=name) for name in ("g", "d")]

        @property
        def metrics(self):
            return self.means

        def train_step(self, data):
            real, _ = data
            for mean in self.means:
                trained = self.generator if mean.name == "g" else self.discriminator
                with tf.GradientTape() as tape:
                    both = tf.concat([self.generator(real[:, :3]), real], 0)
                    is_real = tf.repeat([[0.0], [1.0]], len_of(real), axis=0)
                    truth = 1 - is_real if mean.name == "g" else is_real
                    loss = self.loss_of(truth, self.discriminator(both))
                    loss += penalty(self.discriminator, real)
                variables = trained.trainable_variables
                optimizer = self.first if mean.name == "g" else self.second
                optimizer.apply(tape.gradient(loss, variables), variables)
                mean.update_state(loss)
            return {mean.name: mean.result() for mean in self.means}

    def len_of(rows):
        return tf.shape(rows)[0]

    return Gan()


def contrasting():
    """Return a model that tells each row from all rows of the global batch."""
    import keras
    import tensorflow as tf

    class Contrasting(keras.Sequential):
        def train_step(self, data):
            x, _ = data
            replica = tf.distribute.get_replica_context()
            rank = replica.replica_id_in_sync_group
            with tf.GradientTape() as tape:
                views = self(x, training=True)
                number = tf.shape(views)[:1]
                before = tf.reduce_sum(replica.all_gather(number, axis=0)[:rank])
                keys = replica.all_gather({"views": tf.transpose(views)}, axis=1)
                loss = keras.losses.sparse_categorical_crossentropy(
                    before + tf.range(number[0]), views @ keys["views"], True
                )
                loss = tf.reduce_mean(loss)
            variables = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            return {"contrast": loss}

    return Contrasting(sequential().layers[:1])


def measuring_loop(*, is_eager):
    """Return a loop with metrics and layer state; an eager one has NumPy gradients."""

    def loop(strategy):
        import keras
        import tensorflow as tf

        class Running(keras.layers.Layer):
            def build(self, shape):
                self.mean = self.add_weight((8,), "zeros", trainable=False)

            def call(self, x):
                self.mean.assign(0.5 * self.mean + 0.5 * tf.reduce_mean(x, 0))
                return x

        with strategy.scope():
            model = keras.Sequential(
                [keras.Input((8,)), Running(), *sequential().layers]
            )
            adam = keras.optimizers.Adam(0.01)
            measured = keras.metrics.AUC(), keras.metrics.MeanSquaredError()

        def step(x, y):
            with tf.GradientTape() as tape:
                y_pred = model(x)
                loss = tf.reduce_sum(tf.square(tf.cast(y, x.dtype) - y_pred)) / BATCH
            gradients = tape.gradient(loss, model.trainable_variables)
            if is_eager:
                gradients = [gradient.numpy() for gradient in gradients]
            adam.apply(gradients, model.trainable_variables)
            for metric in measured:
                metric.update_state(y, y_pred)

        def run(batch):
            strategy.run(step, args=batch)

        run = run if is_eager else tf.function(run)
        arrays = data(floatx=keras.config.floatx())
        whole = tf.data.Dataset.from_tensor_slices(arrays).batch(BATCH)
        history = []
        for _ in range(EPOCHS):
            for batch in strategy.experimental_distribute_dataset(whole):
                run(batch)
            history += [float(metric.result()) for metric in measured]
            measured[0].reset_state()
        return {"weights": model.get_weights(), "history": history}

    return loop


ROWS = {
    "a function for a step": fitting(with_a_function_for_a_step, optimizer=sgd),
    "compute_metrics": fitting(
        with_metrics_of_its_own, metrics=["mae"], then=["evaluate"]
    ),
    "a Sum of losses": fitting(with_a_sum_of_losses),
    "a loss for each row": losses_row_by_row,
    "a callback that changes weights": fitting(feed=halved_by_a_callback),
    "single batches alone": alone_in_between,
    "a layer that a step makes": made_by_the_step,
    "statistics of one rank": normalized_here_and_there,
    "a model without call": fitting(
        without_call, large_batches, metrics=["mae"], then=["evaluate", "predict"]
    ),
    "a call that takes other inputs": fitting(with_other_inputs, large_batches),
    "a step that changes the batch": fitting(with_another_batch, large_batches),
    "a GAN without call": fitting(gan, large_batches, rows=ONE_ROW_LEFT),
    "rows of all ranks in a loss": fitting(
        contrasting, large_batches, rows=ONE_ROW_LEFT, optimizer=sgd, loss=None
    ),
    "call is a function": compiled_twice,
    "a loop with metrics and layer state": measuring_loop(is_eager=False),
    "an eager loop with NumPy gradients": measuring_loop(is_eager=True),
    "a step that changes the batch, accumulated": fitting(
        with_another_batch,
        large_batches,
        optimizer=optimizer("Adam", gradient_accumulation_steps=2),
    ),
}
# Of each, another row of `make test` has the subject too.
VARIANTS = [
    "single batches alone",
    "a layer that a step makes",
    "a call that takes other inputs",
    "a step that changes the batch, accumulated",
]
# What `make test` runs; the others differ from one of them in less.
QUICK = [
    "compute_metrics",
    "a loss for each row",
    "a model without call",
    "a step that changes the batch",
    "a step that changes the batch, accumulated",
    "rows of all ranks in a loss",
    "a loop with metrics and layer state",
]


@pytest.mark.parametrize(
    ("row", "column"), everywhere(ROWS, quick=QUICK, variants=VARIANTS)
)
def test_n_processes_end_as_one(cells, column, row):
    cells.check(row, column)
