"""Train a small CNN on handwritten digits, on as many processes as you start.

    tfdist run -np 2 examples/digits_allreduce.py
    python examples/digits_allreduce.py

It is an ordinary Keras program but for three lines, marked (1), (2) and (3).
"""

import argparse
import hashlib

import keras
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tfdist

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=24)
parser.add_argument("--batch_size", type=int, default=32, help="of each process")
args = parser.parse_args()

# (1) First of all, because TensorFlow must know the other processes when it starts.
strategy = tfdist.strategies.AllReduceStrategy()

keras.utils.set_random_seed(1)
digits = load_digits()
images, labels = digits.images[..., None] / 16, digits.target
x, x_test, y, y_test = train_test_split(
    images, labels, test_size=0.2, stratify=labels, random_state=2
)

# (2) The model, its optimizer and its metrics are made under the strategy.
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

# (3) A callback that knows of all ranks; everything else is Keras as always.
throughput = tfdist.callbacks.Throughput()
global_batch_size = args.batch_size * strategy.num_replicas_in_sync
model.fit(x, y, global_batch_size, args.epochs, callbacks=[throughput])
_, accuracy = model.evaluate(x_test, y_test, verbose=0)

weights = b"".join(weight.tobytes() for weight in model.get_weights())
digests = strategy.collective.exchange("weights", hashlib.sha256(weights).hexdigest())
if len(set(digests)) > 1:
    raise SystemExit(f"the ranks hold different weights, by rank: {digests}")
if tfdist.is_chief():
    print(f"test accuracy: {accuracy:.4f}")
    print(f"all {len(digests)} ranks hold identical weights: sha256 {digests[0]}")
