"""The equality matrix: every way to call `fit`, and to say what a step is."""

from functools import partial

import numpy as np
import pytest
from equality_matrix import everywhere
from equality_models import (
    BATCH,
    arrays,
    compiled,
    data,
    fitting,
    functional,
    in_float32,
    optimizer,
    sequential,
    state,
)

import tfdist


def class_weights(x, y):
    return {**arrays(x, y), "class_weight": {0: 0.5, 1: 2.0}}


def sample_weights(x, y):
    return {**arrays(x, y), "sample_weight": np.linspace(0.0, 2.0, len(x))}


def validation_data(x, y):
    held_out = (x[:37], y[:37], np.linspace(0.5, 1.5, 37))
    return {**arrays(x, y), "validation_data": held_out, "validation_batch_size": 9}


def validation_split(x, y):
    fed = {**arrays(x, y), "validation_split": 0.3}
    return {**fed, "initial_epoch": 2, "epochs": 4}


def batches(x, y):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)


def endless(x, y):
    return {"x": batches(x, y).repeat(), "steps_per_epoch": 5}


def running_out(x, y):
    """Seven batches, of which the second epoch finds two."""
    return {"x": batches(x, y), "steps_per_epoch": 5}


def validation_steps(x, y):
    return {
        "x": batches(x, y),
        "validation_data": batches(x, y).repeat(),
        "validation_steps": 3,
        "validation_freq": 2,
        "epochs": 4,
    }


def two_of_everything():
    """Two inputs, two outputs, a shared layer."""
    import keras

    layers = keras.layers
    one, other = keras.Input((4,), name="one"), keras.Input((4,), name="other")
    shared = layers.Dense(4, activation="tanh")
    joined = layers.Concatenate()([shared(one), shared(other)])
    outputs = {
        "kind": layers.Dense(1, activation="sigmoid", name="kind")(joined),
        "size": layers.Dense(2, name="size")(joined),
    }
    return keras.Model({"one": one, "other": other}, outputs)


def inputs_and_outputs(x, y, **more):
    x = {"one": x[:, :4], "other": x[:, 4:]}
    return {**arrays(x, {"kind": y, "size": x["one"][:, :2]}), **more}


def weights_by_output(x, y):
    weights = np.linspace(0.0, 2.0, len(x))
    return inputs_and_outputs(x, y, sample_weight={"kind": weights, "size": weights**2})


BY_OUTPUT = {
    "loss": {"kind": "binary_crossentropy", "size": "huber"},
    "loss_weights": {"kind": 0.3, "size": 2.0},
    "metrics": {"kind": ["accuracy"], "size": ["mae"]},
    "weighted_metrics": {"size": ["mse"]},
}


def with_added_loss():
    """The mean of an activation, which is a mean over rows."""
    import keras

    class Activity(keras.layers.Layer):
        def call(self, inputs):
            self.add_loss(0.1 * keras.ops.mean(inputs**2))
            return inputs

    inputs = keras.Input((8,))
    hidden = Activity()(keras.layers.Dense(6, activation="tanh")(inputs))
    return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))


def regularised():
    import keras

    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(
        6,
        activation="tanh",
        kernel_regularizer="l2",
        bias_regularizer="l1",
        activity_regularizer="l2",
    )(inputs)
    return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))


def with_steps_of_its_own(returns):
    """A model that says what a step of training and one of evaluation is."""

    def make():
        import keras
        import tensorflow as tf

        class Custom(keras.Sequential):
            def train_step(self, data):
                x, y = data
                with tf.GradientTape() as tape:
                    y_pred = self(x, training=True)
                    loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply(gradients, self.trainable_variables)
                return self.logs(y, y_pred, loss)

            def test_step(self, data):
                x, y = data
                y_pred = self(x, training=False)
                return self.logs(y, y_pred, self.compute_loss(x=x, y=y, y_pred=y_pred))

            def logs(self, y, y_pred, loss):
                if returns == "loss":
                    return {"loss": loss}
                for metric in self.metrics:
                    if metric.name == "loss":
                        metric.update_state(loss)
                    else:
                        metric.update_state(y, y_pred)
                return {metric.name: metric.result() for metric in self.metrics}

        return Custom(sequential().layers)

    return make


def with_loss_of_its_own():
    """A `compute_loss` that knows of no strategy."""
    import keras

    class Custom(keras.Sequential):
        def compute_loss(
            self, x=None, y=None, y_pred=None, sample_weight=None, training=True
        ):
            return keras.ops.mean((keras.ops.cast(y, y_pred.dtype) - y_pred) ** 4)

    return Custom(sequential().layers)


def parts_of(batch):
    """Return the rows of a batch that are this rank's; unequal parts."""
    bounds = {
        1: [0, BATCH],
        2: [0, 2, BATCH],
        3: [0, 2, 9, BATCH],
    }[tfdist.size()]
    return batch[bounds[tfdist.rank()] : bounds[tfdist.rank() + 1]]


def train_on_batch(strategy, part=parts_of, **options):
    """Single batches, of which each rank gives its part."""
    x, y = data(80)
    with strategy.scope():
        model = compiled(sequential(), **options)
    for start in range(0, 80, BATCH):
        rows = slice(start, start + BATCH)
        model.train_on_batch(part(x[rows]), part(y[rows]))
    return state(model)


def whole_batches(strategy):
    """Single batches in code that knows of no ranks: all of them on each."""
    found = train_on_batch(strategy, part=lambda batch: batch)
    x, y = data()
    with strategy.scope():
        model = compiled(sequential(), metrics=["accuracy", "auc"])
    found["train"] = model.train_on_batch(x, y, return_dict=True)
    found["test"] = model.test_on_batch(x, y, return_dict=True)
    found["predict"] = model.predict_on_batch(x)
    return found


def not_trained(strategy):
    """Evaluation and prediction alone, of batches in which some ranks have no row."""
    x, y = data(97)
    with strategy.scope():
        model = compiled(sequential(), metrics=["accuracy", "auc"])
    options = {"batch_size": 32, "verbose": 0}
    return {
        "evaluate": model.evaluate(x, y, return_dict=True, **options),
        "again": model.evaluate(x, y, return_dict=True, **options),
        "predict": model.predict(x, **options),
    }


def several_calls(strategy):
    """`fit` again and again, evaluations between, and a model compiled anew."""
    x, y = data()
    with strategy.scope():
        model = compiled(sequential(), metrics=["mse"])
    first = model.fit(**arrays(x, y), verbose=0).history
    evaluated = model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
    second = model.fit(x[:33], y[:33], batch_size=7, verbose=0).history
    with strategy.scope():
        compiled(model, optimizer("SGD", 0.1))
    history = model.fit(**arrays(x, y), verbose=0)
    return {**state(model, history), "before": [first, evaluated, second]}


def custom_loop(strategy):
    """A loop as tf.distribute's guide writes it."""
    import keras
    import tensorflow as tf

    # Other ranks start from other weights, and must not go on from them.
    keras.utils.set_random_seed(1 + tfdist.rank())
    x, y = data(floatx=keras.config.floatx())
    with strategy.scope():
        model = functional()
        adam = keras.optimizers.Adam(0.01)
        adam.build(model.trainable_variables)
    loss_of = keras.losses.BinaryCrossentropy(reduction="none")

    @tf.function
    def step(batch, rows):
        def replica_step(x, y):
            with tf.GradientTape() as tape:
                losses = loss_of(y, model(x, training=True))
                loss = tf.reduce_sum(losses) / tf.cast(rows, losses.dtype)
            gradients = tape.gradient(loss, model.trainable_variables)
            adam.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    whole = batches(x, y)
    losses = [
        step(batch, len(rows)).numpy()
        for batch, (rows, _) in zip(
            strategy.experimental_distribute_dataset(whole), whole, strict=True
        )
    ]
    return {"weights": model.get_weights(), "history": losses}


THEN = ("evaluate", "predict")
MEASURED = {"metrics": ["accuracy", "auc"], "then": THEN}
ROWS = {
    "uneven batches": fitting(**MEASURED),
    "fewer rows than ranks": fitting(rows=2, **MEASURED),
    "class_weight": fitting(feed=class_weights, weighted_metrics=["accuracy"]),
    "sample_weight": fitting(
        feed=sample_weights, metrics=["mse"], weighted_metrics=["accuracy"]
    ),
    "validation_data": fitting(feed=validation_data, metrics=["mse"]),
    "validation_split, initial_epoch": fitting(feed=validation_split),
    "validation_steps, validation_freq": fitting(feed=validation_steps),
    "steps_per_epoch, endless data": fitting(feed=endless),
    "steps_per_epoch, data that runs out": fitting(feed=running_out),
    "steps_per_execution": fitting(steps_per_execution=3, then=THEN),
    "run_eagerly": fitting(run_eagerly=True, **MEASURED),
    "jit_compile": fitting(jit_compile=True, **MEASURED),
    "jit_compile, clipped": fitting(
        jit_compile=True, optimizer=optimizer("SGD", 1.0, global_clipnorm=0.1)
    ),
    "several inputs and outputs": fitting(
        two_of_everything, inputs_and_outputs, **BY_OUTPUT
    ),
    "sample_weight by output": fitting(
        two_of_everything, weights_by_output, **BY_OUTPUT
    ),
    "add_loss": fitting(with_added_loss),
    # Older versions of Keras cannot do this in float64.
    "regularisers": in_float32(fitting(regularised)),
    "train_step and test_step": fitting(
        with_steps_of_its_own("metrics"), metrics=["mse"], then=THEN
    ),
    "train_step and test_step, plain loss": fitting(
        with_steps_of_its_own("loss"), then=THEN
    ),
    "compute_loss": fitting(with_loss_of_its_own),
    "train_on_batch": train_on_batch,
    "train_on_batch, accumulated": partial(
        train_on_batch, optimizer=optimizer("SGD", 0.1, gradient_accumulation_steps=2)
    ),
    "train_on_batch and test_on_batch, whole batches": whole_batches,
    "evaluate and predict alone": not_trained,
    "several calls of fit": several_calls,
    "custom loop": custom_loop,
}
# Of each, another row of `make test` has the subject too.
VARIANTS = [
    "steps_per_epoch, data that runs out",
    "jit_compile",
    "sample_weight by output",
    "train_step and test_step, plain loss",
    "compute_loss",
    "train_on_batch, accumulated",
    "validation_steps, validation_freq",
    "regularisers",
    "train_on_batch and test_on_batch, whole batches",
    "several calls of fit",
    "class_weight",
    "validation_split, initial_epoch",
    "evaluate and predict alone",
    "custom loop",
]
# What `make test` runs; the others differ from one of them in less.
QUICK = [
    "uneven batches",
    "fewer rows than ranks",
    "sample_weight",
    "validation_data",
    "steps_per_execution",
    "run_eagerly",
    "jit_compile, clipped",
    "several inputs and outputs",
    "train_step and test_step",
    "train_on_batch",
]


@pytest.mark.parametrize(
    ("row", "column"),
    everywhere(
        ROWS,
        quick=QUICK,
        variants=VARIANTS,
        not_central=["jit_compile", "jit_compile, clipped"],
    ),
)
def test_n_processes_end_as_one(cells, column, row):
    cells.check(row, column)
