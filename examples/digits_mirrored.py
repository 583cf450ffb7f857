"""Train one model on several devices of one process: a copy on each, kept equal.

    python examples/digits_mirrored.py
    python examples/digits_mirrored.py --devices=4

It is what `multi_gpu_model` was in Keras and `DataParallel` is in PyTorch, and it does
what the tutorial of `tf.distribute.MirroredStrategy` does, of which one word changes.
On a machine with several GPUs it takes those. On others it makes devices of the
processor, which shows how it works and is not faster.
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf
from absl import app, flags, logging
from digits import BATCH_SIZE, DATASET, EPOCHS, build_model, load, scale

import tfdist

# This program has one strategy.
del flags.FLAGS.strategy
DEVICES = flags.DEFINE_integer("devices", 2, "how many devices", lower_bound=1)


def main(_):
    # Else TensorFlow Datasets tells each step of its work.
    logging.set_verbosity(logging.ERROR)
    # First of all: TensorFlow takes up devices only while it starts.
    devices = choose_devices(DEVICES.value)

    # (1) Was: tf.distribute.MirroredStrategy(devices).
    strategy = tfdist.strategies.MirroredStrategy(devices)

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

    # (3) Everything else is Keras as always.
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder, "digits.weights.h5")
        model.fit(train, epochs=EPOCHS.value, callbacks=make_callbacks(checkpoint))
        _, accuracy = model.evaluate(test, verbose=0)
        print(f"test accuracy: {accuracy:.4f}")
        for copy in strategy.experimental_local_results(model.variables[0].value):
            print(f"a copy on {copy.device[-5:]}: {tf.norm(copy):.6f}")

        # What was saved is one model, for one device.
        alone = build_model(info.features["image"].shape)
        alone.load_weights(checkpoint)
        alone.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        _, accuracy = alone.evaluate(test, verbose=0)
        print(f"test accuracy of the checkpoint on one device: {accuracy:.4f}")


def choose_devices(count):
    """Return the names of so many GPUs, or of parts of the processor."""
    gpus = tfdist.devices.logical("GPU")
    return gpus[:count] if len(gpus) >= count else tfdist.devices.split("CPU:0", count)


def make_callbacks(checkpoint):
    return [
        keras.callbacks.ModelCheckpoint(checkpoint, save_weights_only=True),
        keras.callbacks.LearningRateScheduler(decay),
        tfdist.callbacks.PrintLearningRate(),
        tfdist.callbacks.Throughput(),
    ]


def decay(epoch, _):
    return 1e-3 if epoch < EPOCHS.value // 2 else 3e-4


if __name__ == "__main__":
    app.run(main)
