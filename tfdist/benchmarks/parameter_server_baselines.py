"""Baselines for parameter servers: `fit` of legacy tf-keras, and a minimal loop."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.benchmarks.models import build_dense, make_rows
from tfdist.benchmarks.servers import MeterMaker, run_task
from tfdist.benchmarks.timers import WARM_UP_EPOCHS, EpochMeter

_BETA_1, _BETA_2 = 0.9, 0.999


class Adam:
    """Adam on the servers, one operation per variable, which loses no update."""

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        self.updates = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._slots = [
            [variable, *(tf.Variable(tf.zeros_like(variable)) for _ in range(2))]
            for variable in variables
        ]

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Update the variables with their gradients."""
        update = tf.cast(self.updates.assign_add(1, read_value=True), tf.float32)
        powers = tf.pow(_BETA_1, update), tf.pow(_BETA_2, update)
        for (variable, *moments), gradient in zip(self._slots, gradients, strict=True):
            with tf.device(variable.device):
                tf.raw_ops.ResourceApplyAdam(
                    var=variable.handle,
                    m=moments[0].handle,
                    v=moments[1].handle,
                    beta1_power=powers[0],
                    beta2_power=powers[1],
                    lr=0.001,
                    beta1=_BETA_1,
                    beta2=_BETA_2,
                    epsilon=1e-7,
                    grad=gradient,
                )


def measure(
    make_meter: MeterMaker, *, baseline: str, **settings: Any
) -> dict[str, Any]:
    """Train with a baseline, and return the cost of each epoch."""
    train = {"tf_keras": _fit, "loop": _loop}[baseline]
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    return {"epochs": train(make_meter, strategy, **settings)}


def _fit(
    make_meter: MeterMaker,
    strategy: Any,
    *,
    source: str,
    batch_size: int,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Train in `fit` of legacy tf-keras, as TensorFlow's documentation shows."""
    # `tf.keras` is legacy tf-keras with TF_USE_LEGACY_KERAS=1.
    assert source == "workers"

    class Meter(EpochMeter, tf.keras.callbacks.Callback):  # type: ignore[misc]
        pass

    with strategy.scope():
        model = build_dense(tf.keras, "adam", settings["steps_per_execution"])
    meter = make_meter(Meter)
    creator = tf.keras.utils.experimental.DatasetCreator
    model.fit(
        creator(lambda context: make_rows(batch_size)),
        epochs=settings["repeats"] + WARM_UP_EPOCHS,
        steps_per_epoch=settings["steps"],
        callbacks=[meter],
        verbose=0,
    )
    epochs: list[dict[str, Any]] = meter.epochs
    return epochs


def _loop(
    make_meter: MeterMaker,
    strategy: Any,
    *,
    source: str,
    batch_size: int,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Train in a loop over `ClusterCoordinator`, without metrics and lost steps."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = build_dense(keras)
        weights = [variable.value for variable in model.trainable_variables]
        adam = Adam(weights)
    train = _make_closure(strategy, model, weights, adam)
    count, steps = settings["steps_per_execution"], settings["steps"]
    batches = _batches(coordinator, source, batch_size, count)
    meter = make_meter(EpochMeter)
    epochs = settings["repeats"] + WARM_UP_EPOCHS
    for epoch in range(epochs):
        meter.on_epoch_begin(epoch)
        for _ in range(steps // count):
            coordinator.schedule(train, args=(next(batches),))
        coordinator.join()
        meter.on_epoch_end(epoch)
    made = int(adam.updates.numpy())
    assert made == epochs * steps, made
    measured: list[dict[str, Any]] = meter.epochs
    return measured


def _make_closure(strategy: Any, model: Any, weights: list[Any], adam: Adam) -> Any:
    """Return the function that trains on a few batches on a worker."""
    loss_of = keras.losses.SparseCategoricalCrossentropy()

    def train_on(features: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(features, training=True))
        adam.apply(tape.gradient(loss, weights))

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def train(batches: list[Any]) -> None:
        for source in batches:
            is_batch = isinstance(source, tuple)
            strategy.run(train_on, args=source if is_batch else next(source))

    return train


def _batches(
    coordinator: Any, source: str, batch_size: int, count: int
) -> Iterator[list[Any]]:
    """Yield the batches of each closure, or iterators for workers to read from."""
    if source == "chief":
        batches = iter(make_rows(batch_size))
        while True:
            yield [next(batches) for _ in range(count)]
    datasets = coordinator.create_per_worker_dataset(lambda: make_rows(batch_size))
    reader = iter(datasets)
    while True:
        yield [reader] * count


if __name__ == "__main__":
    run_task(measure)
