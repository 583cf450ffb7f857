"""Choose the device of each operation, and of each model, by hand.

    python examples/manual_placement.py
    python examples/manual_placement.py --log_placement

It says which devices there are, makes two of the processor where there are no two
GPUs, computes a part of a sum on each and the sum on the processor, and trains a model
on each: not one model on both, which is what strategies are for.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import tfdist

LOG_PLACEMENT = flags.DEFINE_bool(
    "log_placement", False, "whether TensorFlow prints where each operation runs"
)


def main(_):
    # TensorFlow takes all of this only before its first operation.
    print(f"physical devices: {', '.join(tfdist.devices.physical())}")
    tfdist.devices.grow_memory()
    devices = tfdist.devices.logical("GPU")[:2]
    if len(devices) < 2:
        devices = tfdist.devices.split("CPU:0", 2)
    if LOG_PLACEMENT.value:
        tfdist.devices.log_placement()
    print(f"logical devices: {', '.join(tfdist.devices.logical())}")

    products = [multiply(device) for device in devices]
    with tf.device("CPU:0"):
        total = tf.add_n(products)
    print(f"the sum of {len(products)} products: {total.numpy().tolist()}")
    places = ", ".join(short(product) for product in products)
    print(f"computed on {places}; added on {short(total)}")

    # A tensor goes from one device to another by a copy.
    with tf.device(devices[1]):
        print(f"a copy is on {short(tf.identity(products[0]))}")

    for slope, device in enumerate(devices, start=2):
        print(f"a model on {device} learned {train(device, slope):.2f}")


def multiply(device):
    with tf.device(device):
        a = tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        b = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        return tf.function(tf.matmul)(a, b)


def train(device, slope):
    """Learn to multiply with a number, on one device; return what was learned."""
    x = np.linspace(-1, 1, 64, dtype="float32").reshape(-1, 1)
    with tf.device(device):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.2), "mse")
        model.fit(x, slope * x, batch_size=8, epochs=10, verbose=0)
    (weights, _) = model.variables[:2]
    assert weights.value.device.endswith(device)
    return float(weights.numpy()[0, 0])


def short(tensor):
    return ":".join(tensor.device.split(":")[-2:])


if __name__ == "__main__":
    app.run(main)
