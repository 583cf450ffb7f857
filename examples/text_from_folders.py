"""Classify texts from folders, a folder for each class; without FOLDER, made reviews.

tfdist run -np 2 examples/text_from_folders.py FOLDER
"""

import random
import sys
from pathlib import Path

import keras
from keras import layers

import tfdist

strategy = tfdist.strategies.AllReduceStrategy()  # (1) first, before TensorFlow starts
COMMON = "the a film this was it and plot of scene actor music end i in to saw with"
OPINIONS = {"bad": "dull awful slow weak noisy", "good": "fine clever warm great funny"}


def write_reviews(folder="reviews"):
    generator = random.Random(1)
    for label, words in OPINIONS.items() if tfdist.is_chief() else ():
        Path(folder, label).mkdir(parents=True, exist_ok=True)
        for i in range(500):
            text = generator.choices(COMMON.split(), k=30)
            text += generator.choices(words.split(), k=2)
            Path(folder, label, f"{i}.txt").write_text(" ".join(text))
    strategy.collective.barrier("the reviews are written")
    return folder


keras.utils.set_random_seed(1)
train, validation = keras.utils.text_dataset_from_directory(
    *(sys.argv[1:] or [write_reviews()]), validation_split=0.2, subset="both", seed=1
)
vectorize = layers.TextVectorization(20_000, output_sequence_length=200)
vectorize.adapt(train.map(lambda texts, labels: texts))

with strategy.scope():  # (2)
    model = keras.Sequential(
        [
            keras.Input((200,), dtype="int64"),
            layers.Embedding(vectorize.vocabulary_size(), 32, mask_zero=True),
            layers.GlobalAveragePooling1D(),
            layers.Dense(len(train.class_names), "softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

callbacks = [
    keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True),
    keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True),
    keras.callbacks.TensorBoard("logs"),
]
train, validation = (
    texts.map(lambda texts, labels: (vectorize(texts), labels))
    for texts in (train, validation)
)
model.fit(train, validation_data=validation, epochs=5, callbacks=callbacks)
model.save("text.keras")
