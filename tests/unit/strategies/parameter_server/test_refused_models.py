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


def compiled(optimizer="sgd", layers=(), **options):
    stack = [keras.Input((2,)), *layers, keras.layers.Dense(1)]
    model = keras.Sequential(stack, name="model")
    model.compile(optimizer, "mse", **options)
    return model


SYNCHRONIZED = keras.layers.BatchNormalization(synchronized=True, name="norm")


@pytest.mark.parametrize(
    ("options", "job", "message"),
    [
        (
            {"run_eagerly": True},
            job_of(),
            r"run_eagerly=True is not for parameter servers: .*Received: the model "
            r"'model', compiled with run_eagerly=True\. Debug on one process",
        ),
        (
            {"jit_compile": True},
            job_of(),
            r"jit_compile=True is not for parameter servers: .*Received: the model "
            r"'model'\. Compile it with jit_compile='auto'",
        ),
        (
            {"steps_per_execution": 8},
            job_of("bounded", 3),
            r"steps_per_execution must be at most max_staleness \+ 1.*Received: "
            r"steps_per_execution=8 with max_staleness=3\. Use "
            r"steps_per_execution=4, or a larger max_staleness",
        ),
        (
            {"layers": [SYNCHRONIZED]},
            job_of("sync"),
            r"synchronized=True is not for parameter servers: .*Received: the layer "
            r"'norm'\. Use synchronized=False, or AllReduceStrategy",
        ),
    ],
    ids=["eager steps", "XLA", "steps beyond the staleness", "synchronized layers"],
)
def test_what_servers_cannot_train_is_refused(options, job, message):
    with pytest.raises(ValueError, match=message):
        check_trainer(compiled(**options), job)


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
