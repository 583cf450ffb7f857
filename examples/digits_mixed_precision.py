"""Train the CNN of digits.py in float16, with weights in float32.

    tfdist run -np 2 examples/digits_mixed_precision.py
    python examples/digits_mixed_precision.py --policy=mixed_bfloat16

The recipe is that of Micikevicius et al. (ICLR 2018), step by step in
docs/mixed_precision.md: a copy of the weights in 16 bits for each pass, a loss that is
scaled so that small gradients do not become zero, gradients that are divided by the
scale before they are clipped, and an update of the weights in float32.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
from absl import app, flags, logging
from digits import (
    BATCH_SIZE,
    DATASET,
    EPOCHS,
    STRATEGY,
    build_model,
    load,
    scale,
)

import tfdist

POLICY = flags.DEFINE_enum(
    "policy",
    "mixed_float16",
    ["mixed_float16", "mixed_bfloat16", "float32"],
    "the types in which the layers compute",
)


def main(_):
    # Else TensorFlow Datasets tells each step of its work.
    logging.set_verbosity(logging.ERROR)
    strategy = tfdist.strategies.create(STRATEGY.value)

    # (1) Before the model: it holds for the layers that are made from now on.
    tfdist.mixed_precision.set_policy(POLICY.value)

    global_batch_size = BATCH_SIZE.value * strategy.num_replicas_in_sync
    (train, test), info = load(DATASET.value)
    keras.utils.set_random_seed(1)
    train = train.map(scale).cache().shuffle(10_000, seed=1).batch(global_batch_size)
    test = test.map(scale).batch(global_batch_size)

    with strategy.scope():
        model = build_model(info.features["image"].shape)
        # (2) A softmax in 16 bits would lose digits that the loss needs.
        model = keras.Sequential(
            [*model.layers[:-1], keras.layers.Dense(10, "softmax", dtype="float32")]
        )
        # (3) With float16 `compile` adds what scales the loss. Clipping comes after.
        model.compile(
            keras.optimizers.Adam(global_clipnorm=1.0),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )

    history = model.fit(train, epochs=EPOCHS.value, verbose=2 * tfdist.is_chief())
    _, accuracy = model.evaluate(test, verbose=0)

    if tfdist.is_chief():
        first = model.layers[0]
        print(f"layers compute in {first.compute_dtype}")
        print(f"weights are in {first.kernel.dtype}")
        for name in ("loss_scale", "skipped_steps"):
            if name in history.history:
                print(f"{name}: {history.history[name][-1]:g}")
        print(f"test accuracy: {accuracy:.4f}")


if __name__ == "__main__":
    app.run(main)
