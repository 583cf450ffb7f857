"""Transfer learning: a saved base is loaded and frozen, then tuned as a whole."""

import keras
import numpy as np
from keras import layers

draw = np.random.default_rng(8)
x = draw.normal(size=(96, 10)).astype("float32")

base = keras.Sequential(
    [keras.Input((10,)), layers.Dense(16, activation="relu"), layers.Dense(8)],
    name="base",
)
head = keras.Sequential([base, layers.Dense(4)])
head.compile("adam", "mse")
head.fit(x, x[:, :4], batch_size=32, epochs=1, verbose=2)
base.save("base.keras")

base = keras.models.load_model("base.keras")
base.trainable = False
inputs = keras.Input((10,))
outputs = layers.Dense(1)(layers.Dropout(0.2)(base(inputs, training=False)))
model = keras.Model(inputs, outputs)
loss = keras.losses.BinaryCrossentropy(from_logits=True)
y = (x[:, :1] > 0).astype("float32")
model.compile(keras.optimizers.Adam(1e-2), loss, metrics=["binary_accuracy"])
model.fit(x, y, batch_size=32, epochs=1, verbose=2)

base.trainable = True
model.compile(keras.optimizers.Adam(1e-4), loss, metrics=["binary_accuracy"])
model.fit(x, y, batch_size=32, epochs=1, verbose=2)
model.save_weights("tuned.weights.h5")
model.load_weights("tuned.weights.h5")
print("trainable", len(model.trainable_weights))
