"""Train one model on several devices by hand: a tower on each, gradients averaged.

    python examples/digits_towers.py
    python examples/digits_towers.py --towers=4

It is how it was done before there were strategies: the batch is cut, each device
computes the gradients of its part, and one place averages them and updates the
variables, which all towers share. On a machine with several GPUs it takes those; on
others it makes devices of the processor, which shows how it works and is not faster.
"""

import os
from collections import Counter

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf
from absl import app, flags, logging
from digits import BATCH_SIZE, DATASET, EPOCHS, build_model, load, scale

import tfdist

# This program has no strategy, and its batch is that of all towers.
del flags.FLAGS.strategy
flags.set_default(BATCH_SIZE, 64)
TOWERS = flags.DEFINE_integer("towers", 2, "how many devices", lower_bound=1)


def main(_):
    # Else TensorFlow Datasets tells each step of its work.
    logging.set_verbosity(logging.ERROR)
    # First of all: TensorFlow takes up devices only while it starts.
    devices = choose_devices(TOWERS.value)

    (train, test), info = load(DATASET.value)
    keras.utils.set_random_seed(1)
    train = train.map(scale).cache().shuffle(10_000, seed=1)
    # Towers of one size, so that the mean of their gradients is that of the batch.
    train = train.batch(BATCH_SIZE.value, drop_remainder=True)
    (images, labels), *_ = test.map(scale).batch(len(test))

    # The variables are on the processor, as the towers share them.
    with tf.device("CPU:0"):
        model = build_model(info.features["image"].shape)
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
    gradients = make_gradients(model, devices)

    @tf.function
    def train_step(images, labels):
        averages = gradients(images, labels, training=True)
        optimizer.apply(averages, model.trainable_variables)

    for _ in range(EPOCHS.value):
        for batch in train:
            train_step(*batch)

    predictions = model.predict(images, batch_size=256, verbose=0)
    print(f"test accuracy: {(predictions.argmax(-1) == labels.numpy()).mean():.4f}")
    batch = images[: BATCH_SIZE.value], labels[: BATCH_SIZE.value]
    compare(gradients, model, batch)


def choose_devices(count):
    """Return the names of so many GPUs, or of parts of the processor."""
    gpus = tfdist.devices.logical("GPU")
    return gpus[:count] if len(gpus) >= count else tfdist.devices.split("CPU:0", count)


def make_gradients(model, devices):
    """Return a function that gives the gradients of a batch, each device's part."""

    def gradients(images, labels, *, training):
        towers = []
        parts = [tf.split(tensor, len(devices)) for tensor in (images, labels)]
        for device, images, labels in zip(devices, *parts, strict=True):
            # The tape computes gradients on the device where it is asked for them.
            with tf.device(device):
                with tf.GradientTape() as tape:
                    loss = mean_loss(labels, model(images, training=training))
                towers.append(tape.gradient(loss, model.trainable_variables))
        with tf.device("CPU:0"):
            return [tf.add_n(one) / len(devices) for one in zip(*towers, strict=True)]

    return tf.function(gradients)


def mean_loss(labels, predictions):
    losses = keras.losses.sparse_categorical_crossentropy(labels, predictions)
    return tf.reduce_mean(losses)


def compare(gradients, model, batch):
    """Say what computed where, and that the gradients are those of one device."""
    # Without dropout, which draws for each tower by itself.
    graph = gradients.get_concrete_function(*batch, training=False).graph
    devices = [
        operation.device.removeprefix("/device:")
        for operation in graph.get_operations()
        if operation.type.startswith(("Conv2D", "MatMul"))
    ]
    for device, count in sorted(Counter(devices).items()):
        print(f"convolutions and matrix products on {device}: {count}")
    with tf.GradientTape() as tape:
        loss = mean_loss(batch[1], model(batch[0], training=False))
    alone = tape.gradient(loss, model.trainable_variables)
    pairs = zip(gradients(*batch, training=False), alone, strict=True)
    difference = max(float(tf.norm(ours - one) / tf.norm(one)) for ours, one in pairs)
    print(f"largest relative difference from one device: {difference:.1e}")


if __name__ == "__main__":
    app.run(main)
