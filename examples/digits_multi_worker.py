"""Train on several machines, each with several devices, by TF_CONFIG.

    tfdist run -np 2 examples/digits_multi_worker.py
    tfdist run -np 2 examples/digits_multi_worker.py --devices=2

What the tutorial of `tf.distribute.MultiWorkerMirroredStrategy` does, of which one word
changes. Each process learns from TF_CONFIG who it is and where the others are;
`tfdist run` sets it, and so can a scheduler, or you on each machine:

    export TF_CONFIG='{"cluster": {"worker": ["node1:2222", "node2:2222"]},
                       "task": {"type": "worker", "index": 0}}'
    python examples/digits_multi_worker.py
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
from absl import app, flags, logging
from digits import (
    BATCH_SIZE,
    DATASET,
    EPOCHS,
    build_model,
    digest,
    load,
    scale,
)

import tfdist

# This program has one strategy.
del flags.FLAGS.strategy
DEVICES = flags.DEFINE_integer("devices", 1, "parts of each processor", lower_bound=1)


def main(_):
    # Else TensorFlow Datasets tells each step of its work.
    logging.set_verbosity(logging.ERROR)
    if DEVICES.value > 1 and not tfdist.devices.physical("GPU"):
        tfdist.devices.split("CPU:0", DEVICES.value)

    # (1) Was: tf.distribute.MultiWorkerMirroredStrategy().
    strategy = tfdist.strategies.MultiWorkerMirroredStrategy()

    # The batch is cut: each device computes `batch_size` of its examples.
    global_batch_size = BATCH_SIZE.value * strategy.num_replicas_in_sync
    (train, test), info = load(DATASET.value)
    keras.utils.set_random_seed(1)
    train = train.map(scale).cache().shuffle(10_000, seed=1).batch(global_batch_size)
    test = test.map(scale).batch(global_batch_size)

    # (2) The model, its optimizer and its metrics are made under the strategy.
    with strategy.scope():
        model = build_model(info.features["image"].shape)
        model.compile(
            "adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"]
        )

    # (3) Everything else is Keras as always, on every rank. The chief writes files.
    verbose = 2 if tfdist.is_chief() else 0
    model.fit(train, epochs=EPOCHS.value, verbose=verbose)
    _, accuracy = model.evaluate(test, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder, "digits.keras"))

    print(f"test accuracy: {accuracy:.4f}, on {strategy.num_replicas_in_sync} devices")
    print(f"weights: sha256 {digest(model)}")


if __name__ == "__main__":
    app.run(main)
