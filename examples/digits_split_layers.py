"""Split the layers of one model over two devices by hand: model parallelism.

    python examples/digits_split_layers.py

The first device holds the layers up to a seam, the second those after it. Activations
go over the seam on the way forward, their gradients on the way back.

Do it only where a model does not fit into one device. The devices work in turn, so that
two are no faster than one; every step moves activations between them; and the half that
has less to do waits for the other. To divide each layer instead, channel by channel,
moves even more. If the model fits, give each device all of it and a part of the batch,
as digits_allreduce.py does.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf
from absl import app, flags, logging
from digits import DATASET, EPOCHS, build_model, load, scale
from digits_towers import BATCH_SIZE, choose_devices, compare, mean_loss

# There are always two devices here.
del flags.FLAGS.towers
SEAM = flags.DEFINE_integer("seam", 1, "how many layers the first device holds")


def main(_):
    # Else TensorFlow Datasets tells each step of its work.
    logging.set_verbosity(logging.ERROR)
    # First of all: TensorFlow takes up devices only while it starts.
    devices = choose_devices(2)

    (train, test), info = load(DATASET.value)
    keras.utils.set_random_seed(1)
    train = train.map(scale).cache().shuffle(10_000, seed=1).batch(BATCH_SIZE.value)
    (images, labels), *_ = test.map(scale).batch(len(test))

    model = build_model(info.features["image"].shape)
    halves = split(model, SEAM.value, devices)
    gradients = make_gradients(halves, devices)
    train_step = make_train_step(halves, devices, gradients)
    for _ in range(EPOCHS.value):
        for batch in train:
            train_step(*batch)

    # The layers in one place again: what was trained in two.
    model.set_weights([weight for half in halves for weight in half.get_weights()])
    predictions = model.predict(images, batch_size=256, verbose=0)
    print(f"test accuracy: {(predictions.argmax(-1) == labels.numpy()).mean():.4f}")
    for half in halves:
        (device,) = {variable.value.device[-5:] for variable in half.variables}
        print(f"parameters on {device}: {half.count_params():,}")
    compare(gradients, model, (images, labels))


def split(model, seam, devices):
    """Return the layers before and after a seam as models, each on its own device."""
    halves, shape = [], model.input_shape
    parts = model.layers[:seam], model.layers[seam:]
    for layers, device in zip(parts, devices, strict=True):
        half = keras.Sequential([keras.Input(shape[1:]), *layers])
        with tf.device(device):
            halves.append(keras.models.clone_model(half))
        shape = half.output_shape
    return halves


def make_gradients(halves, devices):
    """Return a function that gives the gradients of both halves for a batch."""
    (lower, upper), (first, second) = halves, devices

    def gradients(images, labels, *, training):
        with tf.device(first), tf.GradientTape() as lower_tape:
            features = lower(images, training=training)
        with tf.device(second):
            with tf.GradientTape() as upper_tape:
                upper_tape.watch(features)
                loss = mean_loss(labels, upper(features, training=training))
            sources = [upper.trainable_variables, features]
            of_upper, at_the_seam = upper_tape.gradient(loss, sources)
        with tf.device(first):
            of_lower = lower_tape.gradient(
                features, lower.trainable_variables, at_the_seam
            )
        return of_lower + of_upper

    return tf.function(gradients)


def make_train_step(halves, devices, gradients):
    """Return a function that updates each half on its device, for a batch."""
    # What an optimizer remembers is on the device of its half, too.
    optimizers = [keras.optimizers.Adam() for _ in halves]
    for optimizer, half, device in zip(optimizers, halves, devices, strict=True):
        with tf.device(device):
            optimizer.build(half.trainable_variables)

    def train_step(images, labels):
        both = gradients(images, labels, training=True)
        for half, optimizer, device in zip(halves, optimizers, devices, strict=True):
            variables = half.trainable_variables
            with tf.device(device):
                optimizer.apply(both[: len(variables)], variables)
            both = both[len(variables) :]

    return tf.function(train_step)


if __name__ == "__main__":
    app.run(main)
