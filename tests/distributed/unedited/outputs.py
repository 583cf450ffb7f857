"""A functional model with two inputs and two outputs, each with its loss."""

import keras
import numpy as np
from keras import layers

keras.mixed_precision.set_global_policy("float32")
keras.utils.set_random_seed(5)

draw = np.random.default_rng(3)
titles = draw.integers(1, 50, (96, 6))
tags = draw.integers(0, 2, (96, 4)).astype("float32")
priority = tags.mean(1, keepdims=True)
department = titles.sum(1) % 3

title = keras.Input((6,), name="title", dtype="int32")
tag = keras.Input((4,), name="tags")
x = layers.Embedding(50, 8, mask_zero=True)(title)
x = layers.Concatenate()([layers.GRU(8)(x), tag])
model = keras.Model(
    [title, tag],
    {
        "priority": layers.Dense(1, name="priority")(x),
        "department": layers.Dense(3, name="department")(x),
    },
)
model.compile(
    keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, clipnorm=1.0),
    loss={
        "priority": "mse",
        "department": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    },
    loss_weights={"priority": 1.0, "department": 0.2},
    metrics={"priority": ["mae"], "department": ["accuracy"]},
)
history = model.fit(
    {"title": titles, "tags": tags},
    {"priority": priority, "department": department},
    sample_weight={"priority": np.ones(96), "department": 1.0 + department},
    batch_size=20,
    epochs=2,
    validation_split=0.25,
    verbose=2,
)
print(sorted(history.history))
