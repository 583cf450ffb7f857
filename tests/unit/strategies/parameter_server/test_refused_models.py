from types import SimpleNamespace

import keras
import pytest

from tfdist.mixed_precision import LossScaleOptimizer
from tfdist.strategies.parameter_server.keras_hooks import check_trainer
from tfdist.strategies.parameter_server.step import check_metrics


def job_of(consistency="async", max_staleness=None):
    is_sync = consistency == "sync"
    return SimpleNamespace(
        consistency=consistency, max_staleness=max_staleness, is_sync=is_sync
    )


def compiled(*metrics, optimizer="sgd", **options):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="model")
    model.compile(optimizer, "mse", metrics=list(metrics), **options)
    return model


def test_eager_steps_are_refused():
    with pytest.raises(
        ValueError,
        match=r"run_eagerly=True is not for parameter servers: .*Received: the model "
        r"'model', compiled with run_eagerly=True\. Debug on one process",
    ):
        check_trainer(compiled(run_eagerly=True), job_of())


def test_xla_is_refused():
    with pytest.raises(
        ValueError,
        match=r"jit_compile=True is not for parameter servers: .*Received: the model "
        r"'model'\. Compile it with jit_compile='auto'",
    ):
        check_trainer(compiled(jit_compile=True), job_of())


def test_more_steps_per_execution_than_the_staleness_allows_are_refused():
    with pytest.raises(
        ValueError,
        match=r"steps_per_execution must be at most max_staleness \+ 1.*Received: "
        r"steps_per_execution=8 with max_staleness=3\. Use "
        r"steps_per_execution=4, or a larger max_staleness",
    ):
        check_trainer(compiled(steps_per_execution=8), job_of("bounded", 3))


SCALES = [LossScaleOptimizer, keras.optimizers.LossScaleOptimizer]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("job", [job_of(), job_of("bounded", 1)])
def test_a_loss_scale_that_may_change_before_the_update_is_refused(scale, job):
    model = compiled(optimizer=scale(keras.optimizers.SGD(), name="scaled"))

    with pytest.raises(
        ValueError,
        match=r"A loss scale may change between a gradient and its update\. Received: "
        rf"'scaled' with consistency='{job.consistency}'\. Use "
        r"consistency='sync', or mixed_bfloat16",
    ):
        check_trainer(model, job)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("job", [job_of("sync"), job_of("bounded", 0)])
def test_a_loss_scale_that_cannot_change_is_accepted(scale, job):
    model = compiled(optimizer=scale(keras.optimizers.SGD()))

    assert check_trainer(model, job) is None


class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.seen = self.add_variable((), "zeros", name="seen", aggregation="mean")


def test_a_metric_that_does_not_sum_is_refused():
    trainer = SimpleNamespace(metrics=[Largest()])

    with pytest.raises(
        ValueError,
        match=r"Parameter servers add up metric updates\. Received: the "
        r"metric 'largest', whose variable 'seen' has aggregation='mean'\. Use a "
        r"metric that sums over examples, or AllReduceStrategy",
    ):
        check_metrics(trainer)


def test_synchronized_layers_are_refused():
    layer = keras.layers.BatchNormalization(synchronized=True, name="norm")
    model = keras.Sequential([keras.Input((2,)), layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    with pytest.raises(
        ValueError,
        match=r"synchronized=True is not for parameter servers: .*Received: the layer "
        r"'norm'\. Use synchronized=False, or AllReduceStrategy",
    ):
        check_trainer(model, job_of("sync"))
