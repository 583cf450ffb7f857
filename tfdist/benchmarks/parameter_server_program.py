"""Program that measures `fit` under `ParameterServerStrategy`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras

from tfdist.benchmarks.models import build_dense, make_rows
from tfdist.benchmarks.servers import MeterMaker, run_task
from tfdist.benchmarks.timers import WARM_UP_EPOCHS, EpochMeter
from tfdist.strategies import ParameterServerStrategy


class Meter(EpochMeter, keras.callbacks.Callback):  # type: ignore[misc]
    """`EpochMeter` as a callback of Keras 3."""


@dataclass(frozen=True)
class Settings:
    """The options of one training."""

    source: str
    batch_size: int
    steps_per_execution: int
    steps: int
    repeats: int
    strategy: dict[str, Any] = field(default_factory=dict)
    optimizer: str = "adam"


def measure(make_meter: MeterMaker, **settings: Any) -> dict[str, Any]:
    """Train the dense model; see `train`."""
    return train(make_meter, build_dense, make_rows, Settings(**settings))


def train(
    make_meter: MeterMaker,
    build: Callable[..., Any],
    make_dataset: Callable[[int], Any],
    settings: Settings,
) -> dict[str, Any]:
    """Train, and return the cost of each epoch and the staleness of all updates."""
    strategy = ParameterServerStrategy(**settings.strategy)
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


if __name__ == "__main__":
    run_task(measure)
