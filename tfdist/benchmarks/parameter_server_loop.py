"""The program that measures a loop by hand over TensorFlow's `ClusterCoordinator`.

It does the least that training needs: gradients of the same model, and Adam as one
operation for each variable, which is what loses no update. There are no metrics.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.benchmarks.epoch_meter import WARM_UP_EPOCHS, EpochMeter
from tfdist.benchmarks.parameter_server_model import build_dense, make_dense_dataset
from tfdist.benchmarks.parameter_server_program import MeterMaker, run_task

_BETA_1, _BETA_2 = 0.9, 0.999


class Adam:
    """Adam on the servers, one operation for each variable.

    Args:
        variables: What it trains.
    """

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        self.updates = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._slots = [
            [variable, *(tf.Variable(tf.zeros_like(variable)) for _ in range(2))]
            for variable in variables
        ]

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Update the variables.

        Args:
            gradients: One for each variable.
        """
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
    make_meter: MeterMaker,
    *,
    source: str,
    batch_size: int,
    steps_per_execution: int,
    steps: int,
    repeats: int,
) -> dict[str, Any]:
    """Train, and measure as many steps as another program has in an epoch.

    Args:
        make_meter: Makes the meter of this job from a class.
        source: Who reads the batches: "chief" or "workers".
        batch_size: Rows of a batch.
        steps_per_execution: Batches of a closure.
        steps: Batches of an epoch, a multiple of those of a closure.
        repeats: How many epochs are measured.

    Returns:
        What each epoch has taken, under "epochs".
    """
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = build_dense(keras)
        weights = [variable.value for variable in model.trainable_variables]
        adam = Adam(weights)
    train = _make_closure(strategy, model, weights, adam)
    batches = _batches(coordinator, source, batch_size, steps_per_execution)
    meter = make_meter(EpochMeter)
    for epoch in range(repeats + WARM_UP_EPOCHS):
        meter.on_epoch_begin(epoch)
        for _ in range(steps // steps_per_execution):
            coordinator.schedule(train, args=(next(batches),))
        coordinator.join()
        meter.on_epoch_end(epoch)
    made = int(adam.updates.numpy())
    assert made == (repeats + WARM_UP_EPOCHS) * steps, made
    return {"epochs": meter.epochs}


def _make_closure(strategy: Any, model: Any, weights: list[Any], adam: Adam) -> Any:
    """Return what a worker does with a few batches."""
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
    """Yield for each closure its batches, or from where to read each."""
    if source == "chief":
        batches = iter(make_dense_dataset(batch_size))
        while True:
            yield [next(batches) for _ in range(count)]
    datasets = coordinator.create_per_worker_dataset(
        lambda: make_dense_dataset(batch_size)
    )
    reader = iter(datasets)
    while True:
        yield [reader] * count


if __name__ == "__main__":
    run_task(measure, sys.argv[1:])
