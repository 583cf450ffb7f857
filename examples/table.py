"""Classify the rows of a table of numbers and words in a CSV file.

tfdist run -np 2 examples/table.py
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_breast_cancer

import tfdist

strategy = tfdist.strategies.AllReduceStrategy()  # (1) first, before TensorFlow starts
NUMBERS = ["radius", "smoothness", "symmetry"]


def write_tumours(file):
    lines = ["radius,smoothness,symmetry,texture,benign"]
    for row, benign in zip(*load_breast_cancer(return_X_y=True), strict=True):
        texture = "fine" if row[1] < 16 else "medium" if row[1] < 22 else "coarse"
        lines.append(f"{row[0]},{row[4]},{row[8]},{texture},{benign}")
    if tfdist.is_chief():
        np.savetxt(file, lines, fmt="%s")
    strategy.collective.barrier("the table is written")


keras.utils.set_random_seed(1)
file = "tumours.csv"
write_tumours(file)
table = np.genfromtxt(file, delimiter=",", names=True, dtype=None, encoding="utf-8")
columns = {name: table[name] for name in [*NUMBERS, "texture"]}
rows = tf.data.Dataset.from_tensor_slices((columns, table["benign"]))
train = rows.skip(100).shuffle(len(table)).batch(32)
validation = rows.take(100).batch(32)

with strategy.scope():  # (2)
    inputs = {name: keras.Input((1,), name=name) for name in NUMBERS}
    inputs["texture"] = keras.Input((1,), name="texture", dtype="string")
    features = []
    for name in NUMBERS:
        normalize = layers.Normalization()
        normalize.adapt(table[name][:, None])
        features.append(normalize(inputs[name]))
    look_up = layers.StringLookup()
    look_up.adapt(table["texture"])
    embed = layers.Embedding(look_up.vocabulary_size(), 4)
    features.append(layers.Flatten()(embed(look_up(inputs["texture"]))))
    hidden = layers.Dense(32, "relu")(layers.concatenate(features))
    model = keras.Model(inputs, layers.Dense(1, "sigmoid")(hidden))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy", "auc"])

callbacks = [
    keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True),
    keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True),
    keras.callbacks.TensorBoard("logs"),
]
model.fit(train, validation_data=validation, epochs=10, callbacks=callbacks)
model.save("table.keras")
