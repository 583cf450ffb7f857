"""Train on Horovod as its users write it: no strategy, six steps, Keras 3.

    horovodrun -np 2 python examples/digits_horovod.py
    mpirun -np 2 python examples/digits_horovod.py
    tfdist run -np 2 --collective horovod examples/digits_horovod.py

Each process has its own part of the data, and the batch size of one process. The steps
are Horovod's own, but for the name of the import and one call for the second. With a
strategy of tfdist there are three, and N processes end with the weights of one:
digits_allreduce.py.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from absl import app, flags, logging
from digits import BATCH_SIZE, DATASET, EPOCHS, build_model, load, scale

import tfdist
import tfdist.horovod as hvd

# This program has no strategy.
del flags.FLAGS.strategy
MODEL = flags.DEFINE_string("model", None, "where to save the best model, *.keras")


def main(_):
    # Else TensorFlow Datasets tells each step of its work.
    logging.set_verbosity(logging.ERROR)

    # 1. Join the processes that were started.
    hvd.init()

    # 2. One GPU for each process, whose memory is taken as it is needed.
    tfdist.devices.pin(hvd.local_rank(), hvd.local_size())

    # 3. Each process has its own part of the data.
    (train, test), info = load(DATASET.value)
    keras.utils.set_random_seed(1 + hvd.rank())
    train = train.map(scale).shard(hvd.size(), hvd.rank()).cache()
    train = train.shuffle(10_000).repeat().batch(BATCH_SIZE.value)
    test = test.map(scale).shard(hvd.size(), hvd.rank()).batch(256)
    steps = info.splits["train"].num_examples // (BATCH_SIZE.value * hvd.size())

    # 4. The rate grows with the batch, and gradients are averaged before the update.
    optimizer = keras.optimizers.Adam(5e-4 * hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer)
    model = build_model(info.features["image"].shape)
    model.compile(
        optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"]
    )

    model.fit(
        train,
        steps_per_epoch=steps,
        epochs=EPOCHS.value,
        callbacks=make_callbacks(),
        verbose=2 if hvd.rank() == 0 else 0,
    )
    _, accuracy = model.evaluate(test, verbose=0)
    accuracy = hvd.allreduce(np.float64(accuracy), name="accuracy")
    if hvd.rank() == 0:
        print(f"test accuracy, the mean of {hvd.size()} processes: {accuracy:.4f}")


def make_callbacks():
    # 5. All begin with the weights of rank 0, and report the mean of all.
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    # 6. One process writes files.
    if MODEL.value and hvd.rank() == 0:
        callbacks.append(keras.callbacks.ModelCheckpoint(MODEL.value))
    return callbacks


if __name__ == "__main__":
    app.run(main)
