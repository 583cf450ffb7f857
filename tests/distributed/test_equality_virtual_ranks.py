"""The equality matrix: with `virtual_ranks`, the same bits on any number of processes.

These rows draw random numbers. `test_virtual_ranks.py` has the restarts, and in
`make test` the several processes.
"""

import pytest
from equality_matrix import SLOW
from equality_models import fitting, in_float32, optimizer, stacked

# The last batch of an epoch has three rows: fewer than there are parts.
ROWS_OF_DATA, BATCH = 99, 48


def validated(x, y):
    return {"x": x, "y": y, "batch_size": BATCH, "validation_data": (x, y)}


def dense(layers):
    return [layers.Dense(24, "relu", kernel_regularizer="l2")]


def convolution(layers):
    reshaped, flat = layers.Reshape((4, 2, 1)), layers.Flatten()
    convolved = layers.Conv2D(8, 2, activation="relu")
    return [reshaped, convolved, layers.Dropout(0.3), flat]


def recurrent(layers):
    return [layers.Reshape((4, 2)), layers.LSTM(8, dropout=0.2)]


def embedding(layers):
    binned = layers.Discretization([-1.0, 0.0, 1.0])
    return [binned, layers.Embedding(4, 8), layers.GlobalAveragePooling1D()]


def attention(layers):
    class Attended(layers.Layer):
        def __init__(self):
            super().__init__()
            self.attention = layers.MultiHeadAttention(2, 4, dropout=0.1)

        def build(self, shape):
            self.attention.build(shape, shape)

        def call(self, inputs):
            return inputs + self.attention(inputs, inputs)

    inner = [layers.Reshape((4, 2)), layers.Dense(8), Attended()]
    return [*inner, layers.LayerNormalization(), layers.GlobalAveragePooling1D()]


def row(inner, *args, **options):
    """Return a row with these inner layers, an optimizer, and metrics."""

    def layers_of(layers):
        return [*inner(layers), layers.Dense(1, "sigmoid", dtype="float32")]

    return in_float32(
        fitting(
            stacked(layers_of),
            validated,
            rows=ROWS_OF_DATA,
            optimizer=optimizer(*args, **options),
            metrics=["accuracy", "mae"],
        )
    )


def in_float16(row):
    """Return the row with layers that compute in float16, under loss scaling."""

    def mixed(strategy):
        import keras

        before = keras.mixed_precision.dtype_policy()
        keras.mixed_precision.set_dtype_policy("mixed_float16")
        try:
            return row(strategy)
        finally:
            keras.mixed_precision.set_dtype_policy(before)

    return mixed


ROWS = {
    "dense": row(dense, "AdamW", use_ema=True, ema_overwrite_frequency=2),
    "convolution": row(convolution, "Lamb", global_clipnorm=0.5),
    "LSTM": row(recurrent, "Adam", gradient_accumulation_steps=2),
    "embedding": row(embedding, "SGD", 0.1, momentum=0.9, clipnorm=0.1),
    "attention": in_float16(row(attention, "Adam")),
}
CELLS = [
    ("dense", "1 in parts"),
    *(pytest.param(row, "4 in parts", marks=SLOW) for row in ROWS),
    pytest.param("convolution", "8 in parts", marks=SLOW),
]


@pytest.mark.parametrize(("row", "column"), CELLS)
def test_n_processes_end_with_the_same_bits(cells, column, row):
    cells.check(row, column)
