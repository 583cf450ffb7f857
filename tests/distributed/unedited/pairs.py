"""Metric learning: two inputs share an encoder, and a loss compares pairs."""

import keras
import numpy as np
from keras import layers, ops

keras.distribution.set_distribution(keras.distribution.DataParallel())

draw = np.random.default_rng(9)
labels = draw.integers(0, 4, (120, 2))
centres = draw.normal(size=(4, 12))
points = centres[labels] + 0.3 * draw.normal(size=(120, 2, 12))
is_other = (labels[:, 0] != labels[:, 1]).astype("float32")


def distance(vectors):
    squares = ops.sum(ops.square(vectors[0] - vectors[1]), axis=1, keepdims=True)
    return ops.sqrt(ops.maximum(squares, keras.config.epsilon()))


def contrastive(y_true, y_pred):
    apart = ops.square(ops.maximum(1.0 - y_pred, 0.0))
    return ops.mean((1.0 - y_true) * ops.square(y_pred) + y_true * apart, axis=-1)


encoder = keras.Sequential([layers.Dense(16, activation="tanh"), layers.Dense(4)])
one, other = keras.Input((12,)), keras.Input((12,))
outputs = layers.Lambda(distance, output_shape=(1,))([encoder(one), encoder(other)])
model = keras.Model([one, other], outputs)
model.compile(
    keras.optimizers.Adam(0.01, use_ema=True, gradient_accumulation_steps=2),
    contrastive,
    metrics=[keras.metrics.BinaryAccuracy(threshold=0.5)],
)
model.fit(
    [points[:, 0], points[:, 1]],
    is_other[:, None],
    batch_size=24,
    epochs=2,
    verbose=2,
)
