"""Program that measures `fit` under `ParameterServerStrategy`."""

from collections.abc import Callable
from typing import Any

import keras

from tfdist.benchmarks.models import build_dense, make_rows
from tfdist.benchmarks.servers import MeterMaker, run_task
from tfdist.benchmarks.timers import WARM_UP_EPOCHS, EpochMeter
from tfdist.strategies import ParameterServerStrategy


class Meter(EpochMeter, keras.callbacks.Callback):  # type: ignore[misc]
    """`EpochMeter` as a callback of Keras 3."""


def measure(
    make_meter: MeterMaker,
    build: Callable[..., Any] = build_dense,
    make_dataset: Callable[[int], Any] = make_rows,
    **settings: Any,
) -> dict[str, Any]:
    """Train, and return the cost of each epoch and the staleness of all updates."""
    strategy = ParameterServerStrategy(**settings.get("strategy", {}))
    optimizer = settings.get("optimizer", "adam")
    with strategy.scope():
        model = build(keras, optimizer, settings["steps_per_execution"])

    def read(context: Any) -> Any:
        return make_dataset(settings["batch_size"])

    meter = make_meter(Meter)
    model.fit(
        read if settings["source"] == "workers" else read(None),
        epochs=settings["repeats"] + WARM_UP_EPOCHS,
        steps_per_epoch=settings["steps"],
        callbacks=[meter],
        verbose=0,
    )
    return {"epochs": meter.epochs, "staleness": strategy.staleness()}


if __name__ == "__main__":
    run_task(measure)
