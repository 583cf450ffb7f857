"""Train the CNN of digits.py with parameter servers.

    tfdist run --workers 2 --ps 1 examples/digits_parameter_server.py
    tfdist run --workers 2 --ps 2 examples/digits_parameter_server.py --consistency=sync

Data, model and options are those of the other program. Here servers hold the variables,
workers compute gradients, and the chief leads them; all run this file.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
from absl import app, flags, logging
from digits import BATCH_SIZE, DATASET, EPOCHS, build_model, load, scale

import tfdist

CONSISTENCY = flags.DEFINE_enum(
    "consistency", "async", ["async", "bounded", "sync"], "when updates are applied"
)
MAX_STALENESS = flags.DEFINE_integer(
    "max_staleness", None, "how many updates a gradient may miss, if bounded"
)
# This program has one strategy.
del flags.FLAGS.strategy


def main(_):
    # Else TensorFlow Datasets tells each step of its work.
    logging.set_verbosity(logging.ERROR)

    # (1) Workers and servers stay in here until the job ends; the chief goes on.
    strategy = tfdist.strategies.ParameterServerStrategy(
        consistency=CONSISTENCY.value, max_staleness=MAX_STALENESS.value
    )

    # Only with "sync" do the workers share a batch; otherwise each step has its own.
    parts = strategy.workers if CONSISTENCY.value == "sync" else 1
    (train, test), info = load(DATASET.value)
    keras.utils.set_random_seed(1)
    train = train.map(scale).cache().shuffle(10_000).batch(BATCH_SIZE.value * parts)
    test = test.map(scale).batch(BATCH_SIZE.value)

    # (2) The variables that are made under the strategy are on the servers.
    with strategy.scope():
        model = build_model(info.features["image"].shape)
        model.compile(
            "adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"]
        )

    # (3) Everything else is Keras as always.
    model.fit(train, epochs=EPOCHS.value)
    staleness = strategy.staleness()
    _, accuracy = model.evaluate(test, verbose=0)

    print(f"test accuracy: {accuracy:.4f}")
    print(f"steps: {int(model.optimizer.iterations.numpy())}")
    for missed, updates in staleness.items():
        print(f"updates that missed {missed} others: {updates}")
    print(strategy.placement)


if __name__ == "__main__":
    app.run(main)
