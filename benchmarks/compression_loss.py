"""Losses of the digits on two processes, by optimizer and compression."""

import json
import subprocess
import sys

import keras
from script import run_script
from sklearn.datasets import load_digits

import tfdist
from tfdist_cli.table import format_table

_SEEDS = (1, 2, 3)
_OPTIMIZERS = {
    "SGD with momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "Adam": keras.optimizers.Adam,
}
_COMPRESSIONS = ("none", "powersgd", "powersgd-4")


def final_loss(collective, optimizer, compression, seed, images, labels):
    """Train a convolutional network for 8 epochs, and return its loss."""
    strategy = tfdist.strategies.AllReduceStrategy(collective, compression=compression)
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(32, 3, activation="relu"),
                keras.layers.Conv2D(64, 3, activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dense(128, activation="relu"),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile(_OPTIMIZERS[optimizer](), "sparse_categorical_crossentropy")
    history = model.fit(images, labels, batch_size=64, epochs=8, verbose=0).history
    return history["loss"][-1]


def train():
    """Train with each optimizer, compression and seed; the chief prints the losses."""
    collective = tfdist.strategies.AllReduceStrategy().collective
    digits = load_digits()
    images, labels = digits.images[:1500, ..., None] / 16, digits.target[:1500]
    losses = {
        f"{optimizer}, {compression}": [
            final_loss(collective, optimizer, compression, seed, images, labels)
            for seed in _SEEDS
        ]
        for optimizer in _OPTIMIZERS
        for compression in _COMPRESSIONS
    }
    if tfdist.is_chief():
        print(json.dumps(losses))


def measure_all(args):
    """Run the job of two processes."""
    command = ["tfdist", "run", "-np", "2", __file__, "--train"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    losses = json.loads(done.stdout.removeprefix("[0] "))
    rows = [[name, *(f"{loss:.3f}" for loss in row)] for name, row in losses.items()]
    header = ["optimizer, compression", *(f"seed {seed}" for seed in _SEEDS)]
    return losses, format_table(header, rows)


if __name__ == "__main__":
    if sys.argv[1:] == ["--train"]:
        train()
    else:
        run_script(__doc__, [], measure_all)
