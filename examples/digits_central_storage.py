"""Train on several devices of one process, with the weights in one place.

    python examples/digits_central_storage.py

Each device computes the gradients of its part of the batch, and reads the weights
where they are. It is for a model whose optimizer is too large for a copy on each. Where
memory is not short, copies are faster: digits_mirrored.py, which it needs beside it.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
from absl import app, logging
from digits import BATCH_SIZE, DATASET, EPOCHS, build_model, load, scale
from digits_mirrored import DEVICES, choose_devices

import tfdist


def main(_):
    # Else TensorFlow Datasets tells each step of its work.
    logging.set_verbosity(logging.ERROR)
    # First of all: TensorFlow takes up devices only while it starts.
    devices = choose_devices(DEVICES.value)

    # (1) Was: tf.distribute.experimental.CentralStorageStrategy(...).
    strategy = tfdist.strategies.CentralStorageStrategy(
        compute_devices=devices, parameter_device="CPU:0"
    )

    global_batch_size = BATCH_SIZE.value * strategy.num_replicas_in_sync
    (train, test), info = load(DATASET.value)
    keras.utils.set_random_seed(1)
    train = train.map(scale).cache().shuffle(10_000, seed=1).batch(global_batch_size)
    test = test.map(scale).batch(global_batch_size)

    # (2) The variables that are made under the strategy are there once.
    with strategy.scope():
        model = build_model(info.features["image"].shape)
        model.compile(
            "adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"]
        )

    # (3) Everything else is Keras as always.
    model.fit(train, epochs=EPOCHS.value)
    _, accuracy = model.evaluate(test, verbose=0)

    print(f"test accuracy: {accuracy:.4f}")
    print(f"computed on {', '.join(devices)}")
    variables = [*model.variables, *model.optimizer.variables]
    places = {variable.value.device.rpartition("/device:")[2] for variable in variables}
    print(f"{len(variables)} variables on {', '.join(places)}")


if __name__ == "__main__":
    app.run(main)
