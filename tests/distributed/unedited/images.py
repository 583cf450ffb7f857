"""Image classification, with augmentation in the pipeline and in the model."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(812)
for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)

draw = np.random.default_rng(0)
labels = draw.integers(0, 3, 160)
images = draw.uniform(0, 255, (160, 16, 16, 3)).astype("float32")
images[np.arange(160), 2:5, 2:5, labels] = 255.0


def dataset_of(part, training):
    dataset = tf.data.Dataset.from_tensor_slices((images[part], labels[part]))
    if training:
        dataset = dataset.shuffle(128)
    dataset = dataset.batch(32)
    return dataset.map(lambda x, y: (x / 255.0, y)).prefetch(tf.data.AUTOTUNE)


augmentation = keras.Sequential(
    [layers.RandomFlip("horizontal"), layers.RandomContrast(0.1)]
)
inputs = keras.Input((16, 16, 3))
x = augmentation(inputs)
for filters in (8, 16):
    x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D()(x)
x = layers.Flatten()(x)
x = layers.Dropout(0.25)(x)
outputs = layers.Dense(3, activation="softmax")(x)
model = keras.Model(inputs, outputs)
model.compile(
    optimizer=keras.optimizers.Adam(3e-3),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
model.fit(
    dataset_of(slice(128), training=True),
    validation_data=dataset_of(slice(128, None), training=False),
    epochs=3,
    verbose=2,
)
print("classes", model.predict(images[:8], verbose=0).argmax(-1))
