"""The program that measures TensorFlow's own strategy in the `fit` of Keras 2.

TensorFlow finds Keras 2 in the package `tf-keras` where the variable
TF_USE_LEGACY_KERAS is 1.
"""

import sys
from typing import Any

import tensorflow as tf

from tfdist.benchmarks.epoch_meter import WARM_UP_EPOCHS, EpochMeter
from tfdist.benchmarks.parameter_server_model import build_dense, make_dense_dataset
from tfdist.benchmarks.parameter_server_program import MeterMaker, run_task


class Meter(EpochMeter, tf.keras.callbacks.Callback):  # type: ignore[misc]
    """`EpochMeter` as a callback of Keras 2."""


def measure(
    make_meter: MeterMaker,
    *,
    batch_size: int,
    steps_per_execution: int,
    steps: int,
    repeats: int,
) -> dict[str, Any]:
    """Train as TensorFlow's documentation says, and measure the epochs.

    Args:
        make_meter: Makes the meter of this job from a class.
        batch_size: Rows of a batch.
        steps_per_execution: Batches of a closure.
        steps: Batches of an epoch.
        repeats: How many epochs are measured.

    Returns:
        What each epoch has taken, under "epochs".
    """
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = build_dense(tf.keras, "adam", steps_per_execution)
    meter = make_meter(Meter)
    creator = tf.keras.utils.experimental.DatasetCreator
    model.fit(
        creator(lambda context: make_dense_dataset(batch_size)),
        epochs=repeats + WARM_UP_EPOCHS,
        steps_per_epoch=steps,
        callbacks=[meter],
        verbose=0,
    )
    return {"epochs": meter.epochs}


if __name__ == "__main__":
    run_task(measure, sys.argv[1:])
