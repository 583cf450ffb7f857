"""Measure how training scales: the same program on one process, and on several.

    tfdist run -np 1 --threads-per-process 1 examples/digits_throughput.py --json=1.json
    tfdist run -np 2 --threads-per-process 1 examples/digits_throughput.py --json=2.json
    tfdist report 1.json 2.json

Each process has a batch of the same size, so this is weak scaling. The report says the
speed-up, the efficiency, and what the laws of Amdahl and Gustafson make of them. On one
machine, give the single process what each of several will have, here one thread: else
the cores are compared. Accuracy is another question: see large_batch.py.
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

flags.set_default(EPOCHS, 5)
flags.set_default(BATCH_SIZE, 64)
JSON = flags.DEFINE_string("json", None, "where to write the rates", required=True)


def main(_):
    # Else TensorFlow Datasets tells each step of its work.
    logging.set_verbosity(logging.ERROR)
    strategy = tfdist.strategies.create(STRATEGY.value)

    global_batch_size = BATCH_SIZE.value * strategy.num_replicas_in_sync
    (train, _), info = load(DATASET.value)
    keras.utils.set_random_seed(1)
    # What takes time is the training: the input is ready in memory, and each epoch
    # holds as many steps, enough to measure, however many processes there are.
    train = train.map(scale).cache().repeat().shuffle(2_000, seed=1)
    train = train.batch(global_batch_size).take(50).prefetch(2)

    with strategy.scope():
        model = build_model(info.features["image"].shape)
        model.compile("adam", loss="sparse_categorical_crossentropy")

    rates = tfdist.callbacks.Throughput(json=JSON.value)
    model.fit(train, epochs=EPOCHS.value, callbacks=[rates], verbose=2)


if __name__ == "__main__":
    app.run(main)
