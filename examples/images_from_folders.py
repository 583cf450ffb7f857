"""Classify images from folders, a folder for each class; without FOLDER, digits.

tfdist run -np 2 examples/images_from_folders.py FOLDER
"""

import sys
from pathlib import Path

import keras
from keras import layers
from sklearn.datasets import load_digits

import tfdist

strategy = tfdist.strategies.AllReduceStrategy()  # (1) first, before TensorFlow starts


def write_digits(folder="digits"):
    for i, (image, label) in enumerate(zip(*load_digits(return_X_y=True), strict=True)):
        file = Path(folder, str(label), f"{i}.png")
        if tfdist.is_chief():
            file.parent.mkdir(parents=True, exist_ok=True)
            keras.utils.save_img(file, image.reshape(8, 8, 1))
    strategy.collective.barrier("the digits are written")
    return folder


keras.utils.set_random_seed(1)
train, validation = keras.utils.image_dataset_from_directory(
    *(sys.argv[1:] or [write_digits()]),
    validation_split=0.2,
    subset="both",
    seed=1,
    image_size=(32, 32),
)
augmentation = keras.Sequential(
    [layers.RandomFlip("horizontal"), layers.RandomRotation(0.1)]
)
augmented = train.map(lambda x, y: (augmentation(x, training=True), y))

with strategy.scope():  # (2)
    model = keras.Sequential([keras.Input((32, 32, 3)), layers.Rescaling(1 / 255)])
    for filters in (16, 32):
        model.add(layers.Conv2D(filters, 3, use_bias=False))
        model.add(layers.BatchNormalization(momentum=0.9, synchronized=True))
        model.add(layers.Activation("relu"))
        model.add(layers.MaxPooling2D())
    model.add(layers.Flatten())
    model.add(layers.Dense(len(train.class_names), "softmax"))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

callbacks = [
    keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True),
    keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True),
    keras.callbacks.TensorBoard("logs"),
]
model.fit(augmented, validation_data=validation, epochs=5, callbacks=callbacks)
model.save("images.keras")
