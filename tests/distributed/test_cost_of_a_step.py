"""What a step costs in collectives: one for the gradients, whatever the options."""

from contextlib import nullcontext

import keras
import numpy as np
import pytest

from tfdist.collectives import Collective
from tfdist.strategies import AllReduceStrategy


class TwoAlike(Collective):
    """Two ranks, of which the other has what this one has; notes what is called."""

    rank, size = 0, 2

    def __init__(self):
        self.reduced = []
        self.exchanged = []

    def all_reduce(self, tensors, reduction="sum", *, name):
        self.reduced.append(name)
        return [2 * tensor if reduction == "sum" else tensor for tensor in tensors]

    def all_gather(self, tensor, *, name):
        raise AssertionError(name)

    def broadcast(self, tensors, root_rank=0, *, name):
        return list(tensors)

    def exchange(self, name, value, *, joint=True):
        self.exchanged.append(name)
        return [value, value]

    def barrier(self, name="barrier"):
        raise AssertionError(name)

    def call(self, what):
        return nullcontext()


class LooksAtBatches(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass


def sgd(**options):
    return lambda: keras.optimizers.SGD(0.1, **options)


def collectives_of_a_step(optimizer, layers=(), **compiled):
    """Train for one step, and name the collectives that its graph holds."""
    collective = TwoAlike()
    strategy = AllReduceStrategy(collective)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), *[layer() for layer in layers], keras.layers.Dense(1)]
        )
        model.compile(optimizer(), **{"loss": "mse", **compiled})
    ones = np.ones((8, 4), "float32")
    model.fit(ones, ones[:, :1], batch_size=8, verbose=0)
    return [name for name in collective.reduced if not name.startswith("metrics")]


OPTIONS = {
    "plain": sgd(momentum=0.9),
    "clipnorm": sgd(clipnorm=1.0),
    "global_clipnorm": sgd(global_clipnorm=1.0),
    "clipvalue": sgd(clipvalue=1.0),
    "weight_decay": sgd(weight_decay=0.1),
    "exponential moving average": sgd(use_ema=True, ema_overwrite_frequency=1),
    "accumulation": sgd(gradient_accumulation_steps=2),
    "loss_scale_factor": sgd(loss_scale_factor=8.0),
    "loss scaling": lambda: keras.optimizers.LossScaleOptimizer(sgd()()),
    "loss scaling of accumulated, clipped gradients": lambda: (
        keras.optimizers.LossScaleOptimizer(
            sgd(gradient_accumulation_steps=2, clipnorm=1.0)()
        )
    ),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_the_order_of_a_step_adds_no_collective(option):
    assert collectives_of_a_step(OPTIONS[option]) == ["gradients/b0"]


def test_statistics_of_layers_travel_with_the_gradients():
    layers = [keras.layers.BatchNormalization]

    assert collectives_of_a_step(sgd(), layers) == ["gradients/b0"]


def test_metrics_are_reduced_once_an_epoch():
    metrics = ["mae", keras.metrics.AUC()]

    assert collectives_of_a_step(sgd(), metrics=metrics) == ["gradients/b0"]


def test_a_loss_that_divides_by_weights_adds_one_number():
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    ones = np.ones((8, 4), "float32")
    collective = TwoAlike()
    with AllReduceStrategy(collective).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(sgd()(), loss)

    model.fit(ones, ones[:, :1], sample_weight=ones[:, 0], batch_size=8, verbose=0)

    of_the_step = [name for name in collective.reduced if name[:7] != "metrics"]
    assert of_the_step == ["divisor of a loss", "gradients/b0"]


@pytest.mark.parametrize(
    ("callbacks", "messages_of_a_step"),
    [([], 0), ([keras.callbacks.EarlyStopping("loss")], 0), ([LooksAtBatches()], 1)],
    ids=["none", "of Keras", "of the user"],
)
def test_decisions_are_talked_over_where_they_may_be_taken(
    callbacks, messages_of_a_step
):
    collective = TwoAlike()
    with AllReduceStrategy(collective).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    ones = np.ones((24, 4), "float32")

    model.fit(ones, ones[:, :1], batch_size=8, callbacks=callbacks, verbose=0)

    # An epoch has a beginning and an end, and three steps.
    assert collective.exchanged.count("decisions") == 2 + 3 * messages_of_a_step
