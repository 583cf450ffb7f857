"""Tiny models, their data, and the usual way to train them, for the equality matrix."""

import numpy as np
from equality_rows import of_keras

import tfdist
from tfdist.compat.patching import holding

EVEN, UNEVEN = 96, 101
# Batches of 32 rows end in one of a single row: the other ranks have none.
ONE_ROW_LEFT = 97
BATCH = 16
EPOCHS = 2
# Logs that tfdist has and plain Keras has not.
ADDED = ("loss_scale", "skipped_steps")


def data(rows=UNEVEN, floatx="float64"):
    """Two classes that eight numbers tell apart."""
    random = np.random.default_rng(7)
    x = random.normal(size=(rows, 8)).astype(floatx)
    return x, (x[:, :1] + x[:, 1:2] ** 2 > 0.5).astype("int64")


def sequential():
    import keras

    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(6, activation="tanh"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def functional():
    import keras

    inputs = keras.Input((8,))
    one = keras.layers.Dense(6, activation="tanh")(inputs)
    other = keras.layers.Dense(4)(inputs)
    joined = keras.layers.Concatenate()([one, other])
    return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(joined))


def subclassed():
    import keras

    class Classifier(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden = keras.layers.Dense(6, activation="tanh")
            self.classes = keras.layers.Dense(1, activation="sigmoid")

        def call(self, inputs):
            return self.classes(self.hidden(inputs))

    return Classifier()


def stacked(layers_of):
    """Return what makes a sequential model; `layers_of` gets `keras.layers`."""

    def make():
        import keras

        return keras.Sequential([keras.Input((8,)), *layers_of(keras.layers)])

    return make


embedded = stacked(
    lambda layers: [
        layers.Lambda(lambda x: x > 0),
        layers.Embedding(3, 4),
        layers.GlobalAveragePooling1D(),
        layers.Dense(1, activation="sigmoid"),
    ]
)


def optimizer(name, learning_rate=0.01, **options):
    """Return what makes an optimizer."""

    def make():
        return of_keras("optimizers", name)(learning_rate, **options)

    return make


adam, sgd = optimizer("Adam"), optimizer("SGD", 0.1)


def arrays(x, y):
    return {"x": x, "y": y, "batch_size": BATCH}


def large_batches(x, y):
    return {"x": x, "y": y, "batch_size": 32}


def fit(strategy, model=sequential, feed=arrays, *, rows=UNEVEN, then=(), **options):
    """Train by `fit`; return everything that must be equal.

    Args:
        strategy: Under which to train.
        model: What makes the model.
        feed: Returns the arguments of `fit` for x and y, the data among them.
        rows: How many rows of data there are.
        then: "evaluate" and "predict", on the same rows.
        **options: For `compile`; its optimizer is what makes one.
    """
    import keras

    x, y = data(rows, keras.config.floatx())
    with strategy.scope():
        model = compiled(model(), **options)
    history = model.fit(**{"epochs": EPOCHS, "verbose": 0, **feed(x, y)})
    found = state(model, history)
    if "evaluate" in then:
        found["evaluate"] = model.evaluate(
            x, y, batch_size=BATCH, verbose=0, return_dict=True
        )
    if "predict" in then:
        found["predict"] = model.predict(x, batch_size=BATCH, verbose=0)
    return found


def fitting(*args, **options):
    """Return a row of the matrix: `fit` with these arguments."""

    def row(strategy):
        return fit(strategy, *args, **options)

    return row


def in_float32(row):
    """Return the row with models and data of Keras's default type."""

    def converted(strategy):
        import keras

        keras.config.set_floatx("float32")
        return row(strategy)

    return converted


def compiled(model, optimizer=adam, **options):
    """Compile a model for the two classes of `data`; XLA would take seconds a model."""
    model.compile(
        **{
            "optimizer": optimizer(),
            "loss": "binary_crossentropy",
            "jit_compile": False,
            **options,
        }
    )
    return model


def state(model, history=None):
    """Return all that a model has become."""
    logs = {} if history is None else history.history
    return {
        "weights": model.get_weights(),
        "optimizer": {
            f"{i} {variable.name}": np.array(variable)
            for i, variable in enumerate(model.optimizer.variables)
            # A step that is not complete is one of all ranks together.
            if "gradient_accumulator" not in variable.path
        },
        "history": {key: logs[key] for key in logs if key not in ADDED},
        "agreed": {key: logs[key] for key in logs if key in ADDED},
        "epochs": [] if history is None else history.epoch,
    }


def wait_for_chief(strategy):
    """Wait for the rank that alone writes files."""
    if tfdist.size() > 1:
        strategy.collective.barrier()


def unchecked(strategy):
    """Return a context in which no first step is checked."""
    hooks = getattr(strategy.extended, "process_hooks", strategy)
    return holding(hooks, "_first_step", None)
