"""Text classification with a small transformer, from strings."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

good, bad = ["good", "great", "fine", "lovely"], ["bad", "poor", "dull", "awful"]
rest = ["film", "plot", "actor", "music", "the", "a", "was", "is", "very"]
draw = np.random.default_rng(1)
labels = draw.integers(0, 2, 120)
texts = [
    " ".join([*draw.choice(rest, draw.integers(3, 9)), draw.choice((bad, good)[label])])
    for label in labels
]

vectorize = layers.TextVectorization(max_tokens=30, output_sequence_length=10)
vectorize.adapt(texts)


class Positions(layers.Layer):
    def __init__(self, length, tokens, width):
        super().__init__()
        self.tokens = layers.Embedding(tokens, width)
        self.positions = layers.Embedding(length, width)

    def call(self, inputs):
        places = ops.arange(ops.shape(inputs)[-1])
        return self.tokens(inputs) + self.positions(places)


inputs = keras.Input((10,), dtype="int64")
x = Positions(10, 30, 16)(inputs)
attended = layers.MultiHeadAttention(2, 8)(x, x)
x = layers.LayerNormalization()(x + attended)
x = layers.GlobalAveragePooling1D()(x)
x = layers.Dropout(0.1)(x)
outputs = layers.Dense(1, activation="sigmoid")(x)
model = keras.Model(inputs, outputs)
model.compile("adam", "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC()])

dataset = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(24)
dataset = dataset.map(lambda text, label: (vectorize(text), label)).cache()
model.fit(dataset, epochs=3, verbose=2)
print("loss", model.evaluate(dataset, verbose=0)[0])
