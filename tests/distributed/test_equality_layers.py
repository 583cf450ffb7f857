"""The equality matrix: layers, and where and when models are made."""

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
    sequential,
    sgd,
    stacked,
    state,
    wait_for_chief,
)
from equality_rows import of_keras

import tfdist


def recurrent(layer_of):
    """Return what makes a model with a layer over four steps of two numbers."""
    return stacked(
        lambda layers: [
            layers.Reshape((4, 2)),
            layer_of(layers),
            layers.Dense(1, activation="sigmoid"),
        ]
    )


lstm = recurrent(lambda layers: layers.LSTM(3))
convolutional = stacked(
    lambda layers: [
        layers.Reshape((8, 1)),
        layers.Conv1D(3, 3, activation="relu"),
        layers.MaxPooling1D(2),
        layers.GroupNormalization(1),
        layers.Bidirectional(layers.GRU(2)),
        layers.Dense(1, activation="sigmoid"),
    ]
)
normalised = stacked(
    lambda layers: [
        layers.Normalization(),
        layers.Dense(1, activation="sigmoid"),
    ]
)
synchronised = stacked(
    lambda layers: [
        layers.Dense(6, activation="tanh"),
        layers.BatchNormalization(synchronized=True),
        layers.Dense(1, activation="sigmoid"),
    ]
)


def keep_positive(x):
    """Set the steps to zero that begin with a negative number."""
    import keras

    return keras.ops.where(x[..., :1] > 0, x, 0)


# Each row has a mask of its own.
masked = stacked(
    lambda layers: [
        layers.Reshape((4, 2)),
        layers.Lambda(keep_positive, output_shape=(4, 2)),
        layers.Masking(),
        layers.BatchNormalization(synchronized=True),
        layers.GlobalAveragePooling1D(),
        layers.Dense(1, activation="sigmoid"),
    ]
)


def attentive():
    import keras

    layers = keras.layers
    inputs = keras.Input((8,))
    steps = layers.Dense(4)(layers.Reshape((4, 2))(inputs))
    attended = layers.MultiHeadAttention(2, 2)(steps, steps)
    normal = layers.LayerNormalization()(layers.Add()([steps, attended]))
    flat = layers.Flatten()(normal)
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid")(flat))


def rematerialised():
    """A model that computes a layer of layers again in the backward pass."""
    import keras

    layers = keras.layers

    class Block(layers.Layer):
        def build(self, shape):
            self.inner, self.outer = layers.Dense(6, "gelu"), layers.Dense(8)
            self.inner.build(shape)
            self.outer.build((None, 6))

        def call(self, x):
            return x + self.outer(self.inner(x))

    inputs = keras.Input((8,))
    scope = of_keras("", "RematScope")
    with scope("list_of_layers", layer_names=["block"]):
        hidden = Block(name="block")(inputs)
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid")(hidden))


def frozen():
    model = sequential()
    model.layers[0].trainable = False
    return model


def unused():
    """A model with a layer that no output depends on."""
    import keras

    class Unused(keras.Model):
        def __init__(self):
            super().__init__()
            self.model = sequential()
            self.other = keras.layers.Dense(3)

        def build(self, shape):
            self.other.build(shape)

        def call(self, inputs):
            return self.model(inputs)

    return Unused()


def used_here_and_there():
    """A model with a layer for the first row of a batch, which only rank 0 has."""
    import keras

    class Sometimes(keras.Model):
        def __init__(self):
            super().__init__()
            self.model = sequential()
            self.other = keras.layers.Dense(1)

        def call(self, inputs):
            outputs = self.model(inputs)
            is_marked = inputs[:, 7:] > 10.0
            # A branch of Python: on other ranks the layer has no gradient at all.
            if hasattr(inputs, "numpy") and inputs.numpy()[:, 7].max() > 10.0:
                more = keras.ops.sigmoid(self.other(inputs[:, :7]))
                outputs = keras.ops.where(is_marked, more, outputs)
            return outputs

        def build(self, shape):
            self.other.build((None, 7))

    return Sometimes()


def marked(x, y):
    x[::16, 7] = 20.0
    return {**arrays(x, y), "shuffle": False}


def built_lazily():
    import keras

    return keras.Sequential(
        [
            keras.layers.Dense(6, activation="tanh"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def adapted():
    model = normalised()
    model.layers[0].adapt(data()[0])
    return model


def trained_briefly(strategy, make=sequential):
    """Return a model that has learnt something, and the data."""
    x, y = data()
    with strategy.scope():
        model = compiled(make(), metrics=["mse"])
    model.fit(**arrays(x, y), verbose=0)
    return model, x, y


def loaded(strategy):
    """A model that is saved, then loaded, with its optimizer, and trained on."""
    import keras

    model, x, y = trained_briefly(strategy, adapted)
    # There, a scalar such as the count of `Normalization` has a copy on each device.
    with strategy.scope():
        model.save("loaded.keras")
    wait_for_chief(strategy)
    with strategy.scope():
        again = keras.models.load_model("loaded.keras")
    return state(again, again.fit(**arrays(x, y), verbose=0))


def weights_loaded(strategy):
    """Weights that are saved, then loaded into a model that has others."""
    model, x, y = trained_briefly(strategy)
    model.save_weights("loaded.weights.h5")
    wait_for_chief(strategy)
    with strategy.scope():
        again = compiled(sequential())
    again.load_weights("loaded.weights.h5")
    return state(again, again.fit(**arrays(x, y), verbose=0))


def weights_set(strategy):
    """Weights that are set on the chief alone."""
    x, y = data()
    with strategy.scope():
        model = compiled(sequential())
    if tfdist.is_chief():
        model.set_weights([np.full_like(array, 0.1) for array in model.get_weights()])
    return state(model, model.fit(**arrays(x, y), verbose=0))


def compiled_outside(strategy):
    """A model made in the scope, and compiled out of it."""
    x, y = data()
    with strategy.scope():
        model = sequential()
    compiled(model, metrics=["mse"])
    return state(model, model.fit(**arrays(x, y), verbose=0))


def made_outside(strategy):
    """A model made out of the scope: what is said to that."""
    x, y = data()
    model = sequential()
    with strategy.scope():
        compiled(model)
    try:
        model.fit(**arrays(x, y), verbose=0)
    except RuntimeError as error:
        return {"agreed": str(error)}
    return {"agreed": "trained"}


def with_a_frozen_layer_from_outside(strategy):
    import keras

    x, y = data()
    outer = keras.layers.Dense(6, activation="tanh", trainable=False)
    outer.build((None, 8))
    with strategy.scope():
        layers = [keras.Input((8,)), outer, keras.layers.Dense(1, activation="sigmoid")]
        model = compiled(keras.Sequential(layers), optimizer=sgd)
    return state(model, model.fit(**large_batches(x, y), verbose=0))


def measured_from_outside(strategy):
    import keras

    x, y = data()
    metrics = [keras.metrics.AUC(), keras.metrics.MeanAbsoluteError()]
    with strategy.scope():
        model = compiled(sequential(), metrics=metrics)
    history = model.fit(**large_batches(x, y), epochs=2, verbose=0)
    return {**state(model, history), "evaluate": model.evaluate(x, y, verbose=0)}


def adapted_in_between(strategy):
    """LoRA, enabled between two calls of `fit`."""
    x, y = data()
    with strategy.scope():
        model = compiled(sequential(), optimizer=sgd)
    model.fit(**arrays(x, y), verbose=0)
    with strategy.scope():
        model.layers[0].enable_lora(2)
        compiled(model, optimizer=sgd)
    return state(model, model.fit(**arrays(x, y), verbose=0))


ROWS = {
    "LSTM": fitting(lstm, large_batches, rows=ONE_ROW_LEFT),
    "Conv1D, bidirectional GRU": fitting(convolutional),
    "MultiHeadAttention": fitting(attentive),
    "BatchNormalization, synchronised": fitting(synchronised, then=["evaluate"]),
    "BatchNormalization, synchronised, clipped": fitting(
        synchronised, optimizer=optimizer("SGD", 1.0, global_clipnorm=0.1)
    ),
    "BatchNormalization, synchronised, accumulated": fitting(
        synchronised,
        optimizer=optimizer("SGD", 0.1, gradient_accumulation_steps=3),
    ),
    "frozen": fitting(frozen),
    "unused": fitting(unused, optimizer=sgd),
    "used on some ranks": fitting(used_here_and_there, marked, run_eagerly=True),
    "built lazily": fitting(built_lazily, then=["evaluate", "predict"]),
    "loaded": loaded,
    "weights loaded": weights_loaded,
    "weights set": weights_set,
    "compiled outside": compiled_outside,
    "made outside": made_outside,
    "a frozen layer made outside": with_a_frozen_layer_from_outside,
    "metrics made outside": measured_from_outside,
    "LoRA enabled in between": adapted_in_between,
    "BatchNormalization, synchronised, masked": fitting(
        masked, large_batches, rows=ONE_ROW_LEFT
    ),
    "rematerialised": fitting(rematerialised),
}
# Of each, another row of `make test` has the subject too.
VARIANTS = [
    "Conv1D, bidirectional GRU",
    "BatchNormalization, synchronised, accumulated",
    "weights loaded",
    "weights set",
    "LSTM",
    "loaded",
    "built lazily",
    "BatchNormalization, synchronised, clipped",
    "frozen",
]
# What `make test` runs; the others differ from one of them in less.
QUICK = [
    "BatchNormalization, synchronised",
    "unused",
    "used on some ranks",
    "made outside",
]


@pytest.mark.parametrize(
    ("row", "column"), everywhere(ROWS, quick=QUICK, variants=VARIANTS)
)
def test_n_processes_end_as_one(cells, column, row):
    cells.check(row, column)


@pytest.mark.parametrize(
    ("row", "column"),
    on_processes(ROWS, ["made outside"], quick=QUICK, variants=VARIANTS),
)
def test_a_model_made_outside_is_told_by_three_variables(cells, column, row):
    for ended in cells.by_rank(row, column):
        assert "was made outside of strategy.scope()" in ended["agreed"]
        assert ended["agreed"].count("dense") == 3
        assert "Make and compile the model in a block" in ended["agreed"]
