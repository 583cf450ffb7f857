"""The program that wrote 1.json and 2.json; docs/scaling.md has the commands."""

import keras
import numpy as np

import tfdist

strategy = tfdist.strategies.AllReduceStrategy()
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ],
        name="a_small_cnn",
    )
    model.compile("adam", "sparse_categorical_crossentropy")

batch_size = 256 * tfdist.size()
random = np.random.default_rng(1)
images = random.random((20 * batch_size, 28, 28, 1), dtype="float32")
labels = random.integers(10, size=len(images))
throughput = tfdist.callbacks.Throughput(json=f"{tfdist.size()}.json")
model.fit(images, labels, batch_size=batch_size, epochs=5, callbacks=[throughput])
