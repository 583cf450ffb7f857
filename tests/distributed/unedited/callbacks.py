"""Callbacks that save, stop and change the learning rate; the best model loads."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)
draw = np.random.default_rng(7)
x = draw.normal(size=(128, 6)).astype("float32")
y = (x.sum(1) > 0).astype("int32")

model = keras.Sequential(
    [
        layers.Dense(12, activation="relu"),
        layers.Dropout(0.2),
        layers.Dense(2, activation="softmax"),
    ]
)
model.compile(
    optimizer=keras.optimizers.Nadam(0.02),
    loss=keras.losses.SparseCategoricalCrossentropy(),
    metrics=["accuracy"],
)
history = model.fit(
    x,
    y,
    batch_size=32,
    epochs=4,
    validation_split=0.25,
    callbacks=[
        keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True),
        keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=0.5),
        keras.callbacks.CSVLogger("log.csv"),
    ],
    verbose=2,
)
print(history.history["learning_rate"])
best = keras.models.load_model("best.keras")
print("best", best.evaluate(x, y, verbose=0))
