"""The program that measures `fit` under `ParameterServerStrategy`."""

import sys
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdist.benchmarks.epoch_meter import WARM_UP_EPOCHS, EpochMeter
from tfdist.benchmarks.parameter_server_model import (
    build_dense,
    build_embedding,
    make_dense_dataset,
    make_embedding_dataset,
)
from tfdist.benchmarks.parameter_server_program import MeterMaker, run_task
from tfdist.cluster import detect
from tfdist.strategies import ParameterServerStrategy

_MODELS = {
    "dense": (build_dense, make_dense_dataset),
    "embedding": (build_embedding, make_embedding_dataset),
}


class Meter(EpochMeter, keras.callbacks.Callback):  # type: ignore[misc]
    """`EpochMeter` as a callback of Keras."""


@dataclass(frozen=True)
class Settings:
    """What is trained, and how.

    Args:
        model: "dense" or "embedding".
        optimizer: What trains it.
        strategy: The options of the strategy.
        is_sharded: Whether large variables are cut into two parts for each server.
        source: Who reads the batches: "chief" or "workers".
        batch_size: Rows of a batch.
        steps_per_execution: Batches that a worker is given in one go.
        steps: Batches of an epoch.
        repeats: How many epochs are measured.
    """

    model: str
    optimizer: str
    strategy: dict[str, Any]
    is_sharded: bool
    source: str
    batch_size: int
    steps_per_execution: int
    steps: int
    repeats: int


def measure(make_meter: MeterMaker, **given: Any) -> dict[str, Any]:
    """Train, and measure the epochs.

    Args:
        make_meter: Makes the meter of this job from a class.
        **given: The `Settings`.

    Returns:
        What each epoch has taken, under "epochs"; and the "staleness" of all updates.
    """
    settings = Settings(**given)
    build, make_dataset = _MODELS[settings.model]
    strategy = ParameterServerStrategy(**_options(settings))
    with strategy.scope():
        model = build(keras, settings.optimizer, settings.steps_per_execution)

    def read(context: Any) -> Any:
        return make_dataset(settings.batch_size)

    data = read if settings.source == "workers" else make_dataset(settings.batch_size)
    meter = make_meter(Meter)
    model.fit(
        data,
        epochs=settings.repeats + WARM_UP_EPOCHS,
        steps_per_epoch=settings.steps,
        callbacks=[meter],
        verbose=0,
    )
    return {"epochs": meter.epochs, "staleness": strategy.staleness()}


def _options(settings: Settings) -> dict[str, Any]:
    """Return the options of the strategy."""
    cluster = detect()
    assert cluster is not None
    if not settings.is_sharded:
        return settings.strategy
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        max_shards=2 * len(cluster.ps)
    )
    return settings.strategy | {"variable_partitioner": partitioner}


if __name__ == "__main__":
    run_task(measure, sys.argv[1:])
