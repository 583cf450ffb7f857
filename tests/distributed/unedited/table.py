"""Structured data: several inputs by name, normalised and looked up."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)

draw = np.random.default_rng(2)
rows = 150
columns = {
    "age": draw.normal(40, 12, rows).astype("float32"),
    "income": draw.lognormal(3, 1, rows).astype("float32"),
    "city": draw.choice(["Oslo", "Lima", "Kyoto"], rows),
    "children": draw.integers(0, 4, rows),
}
target = (columns["age"] > 40).astype("float32")

inputs, encoded = {}, []
for name in ("age", "income"):
    inputs[name] = keras.Input((1,), name=name)
    normalization = layers.Normalization()
    normalization.adapt(columns[name][:, None])
    encoded.append(normalization(inputs[name]))
inputs["city"] = keras.Input((1,), name="city", dtype="string")
lookup = layers.StringLookup(output_mode="one_hot")
lookup.adapt(columns["city"])
encoded.append(lookup(inputs["city"]))
inputs["children"] = keras.Input((1,), name="children", dtype="int64")
embedded = layers.Embedding(4, 3)(inputs["children"])
encoded.append(layers.Flatten()(embedded))

x = layers.Concatenate()(encoded)
x = layers.Dense(16, activation="relu")(x)
outputs = layers.Dense(1, activation="sigmoid")(layers.Dropout(0.3)(x))
model = keras.Model(inputs, outputs)
model.compile(
    keras.optimizers.RMSprop(0.01),
    keras.losses.BinaryCrossentropy(),
    metrics=[keras.metrics.AUC(name="auc"), keras.metrics.Precision()],
)
features = {name: column[:, None] for name, column in columns.items()}
features = {name: tf.convert_to_tensor(column) for name, column in features.items()}
dataset = tf.data.Dataset.from_tensor_slices((features, target)).batch(32)
model.fit(dataset, epochs=3, class_weight={0: 1.0, 1: 2.0}, verbose=2)
