"""What a step costs in collectives: one for the gradients, whatever the options."""

from contextlib import nullcontext

import numpy as np
import pytest

import tfdist

pytestmark = pytest.mark.slow

ONES = np.ones((24, 4), "float32")


def two_alike():
    """Return two ranks, of which the other has what this one has; it notes calls."""
    from tfdist.collectives.base import Collective

    class TwoAlike(Collective):
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

    return TwoAlike()


def optimizers():
    """Make an optimizer for each option that has a place in the order of a step."""
    from keras.optimizers import SGD, LossScaleOptimizer

    accumulated = SGD(0.1, gradient_accumulation_steps=2, clipnorm=1.0)
    return {
        "plain": SGD(0.1, momentum=0.9),
        "clipnorm": SGD(0.1, clipnorm=1.0),
        "global_clipnorm": SGD(0.1, global_clipnorm=1.0),
        "clipvalue": SGD(0.1, clipvalue=1.0),
        "weight_decay": SGD(0.1, weight_decay=0.1),
        "moving average": SGD(0.1, use_ema=True, ema_overwrite_frequency=1),
        "accumulation": SGD(0.1, gradient_accumulation_steps=2),
        "loss_scale_factor": SGD(0.1, loss_scale_factor=8.0),
        "loss scaling": LossScaleOptimizer(SGD(0.1)),
        "tfdist's loss scaling": tfdist.mixed_precision.LossScaleOptimizer(SGD(0.1)),
        "loss scaling of accumulated, clipped": LossScaleOptimizer(accumulated),
    }


OPTIONS = (
    *("plain", "clipnorm", "global_clipnorm", "clipvalue", "weight_decay"),
    *("moving average", "accumulation", "loss_scale_factor", "loss scaling"),
    *("tfdist's loss scaling", "loss scaling of accumulated, clipped"),
)


def keeping(value_of):
    """Return a kind of model that keeps a value computed after the update."""
    import keras

    class Keeping(keras.Sequential):
        def __init__(self, layers):
            super().__init__(layers)
            self.kept = keras.Variable(keras.ops.zeros((4, 1)), trainable=False)

        def train_step(self, data):
            logs = super().train_step(data)
            self.kept.assign(0.9 * self.kept + 0.1 * value_of(self, data[0]))
            return logs

    return Keeping


def train(optimizer="sgd", layers=(), loss="mse", metrics=None, kind=None, **fitted):
    """Train for three steps, and return what was called."""
    import keras

    collective = two_alike()
    with tfdist.strategies.AllReduceStrategy(collective).scope():
        layers = [keras.Input((4,)), *layers, keras.layers.Dense(1)]
        model = (kind or keras.Sequential)(layers)
        model.compile(optimizer, loss, metrics=metrics)
    model.fit(ONES, ONES[:, :1], batch_size=8, verbose=0, **fitted)
    of_steps = [name for name in collective.reduced if not name.startswith("metrics")]
    return of_steps, collective.exchanged.count("decisions")


def train_in_every_way():
    """Train with every option; what the graph of a step holds, and what is said."""
    import keras

    class LooksAtBatches(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            pass

    weighted = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    found = {name: train(optimizer) for name, optimizer in optimizers().items()}
    return {
        **found,
        "statistics": train(layers=[keras.layers.BatchNormalization()]),
        "average of weights": train(kind=keeping(lambda model, _: model.weights[0])),
        "average of rows": train(
            kind=keeping(lambda _, x: keras.ops.mean(x, axis=0)[:, None])
        ),
        "metrics": train(metrics=["mae", keras.metrics.AUC()]),
        "weighted": train(loss=weighted, sample_weight=ONES[:, 0]),
        "callback of Keras": train(callbacks=[keras.callbacks.EarlyStopping("loss")]),
        "callback of the user": train(callbacks=[LooksAtBatches()]),
    }


@pytest.fixture(scope="module")
def costs():
    """The collectives of a step, and the agreements of an epoch, for each option."""
    # In a process of its own: from here on it refuses models of no strategy.
    return tfdist.testing.cluster(train_in_every_way, size=1).values[0]


@pytest.mark.parametrize("option", OPTIONS)
def test_the_order_of_a_step_adds_no_collective(costs, option):
    assert costs[option][0] == ["gradients/b0"]


def test_statistics_of_layers_travel_with_the_gradients(costs):
    assert costs["statistics"][0] == ["gradients/b0"]


def test_state_after_the_update_is_sent_if_it_is_of_rows(costs):
    # A step with logs of its own is traced twice.
    gradients = ["gradients/b0", "gradients_1/b0"]
    of_weights, of_rows = (
        costs[f"average of {what}"][0] for what in ("weights", "rows")
    )

    assert of_weights == gradients
    assert [*of_rows] == [
        *(gradients[0], "state after the step"),
        *(gradients[1], "state after the step_1"),
    ]


def test_metrics_are_reduced_once_an_epoch(costs):
    assert costs["metrics"][0] == ["gradients/b0"]


def test_a_loss_that_divides_by_weights_adds_one_number(costs):
    assert costs["weighted"][0] == ["divisor of a loss", "gradients/b0"]


@pytest.mark.parametrize(
    ("option", "agreements"),
    [
        # An epoch has a beginning and an end, and three steps.
        ("plain", 2),
        ("callback of Keras", 2),
        ("callback of the user", 2 + 3),
    ],
)
def test_decisions_are_talked_over_where_they_may_be_taken(costs, option, agreements):
    assert costs[option][1] == agreements
