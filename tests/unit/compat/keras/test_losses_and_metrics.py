"""Losses and metrics of a rank, which become those over the rows of all ranks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.keras.losses_and_metrics import noted_results

REDUCTIONS = ["sum_over_batch_size", "mean", "sum", "mean_with_sample_weight"]


class Itself(keras.losses.Loss):
    """A loss that is its predictions, entry by entry."""

    def call(self, y_true, y_pred):
        return y_pred


def loss_of(values, *, weights=None, mask=None, reduction="sum_over_batch_size"):
    values = tf.convert_to_tensor(values, tf.float32)
    if mask is not None:
        keras.src.backend.set_keras_mask(values, tf.constant(mask))
    weights = None if weights is None else tf.constant(weights)
    return Itself(reduction=reduction)(values, values, sample_weight=weights)


# The gradient weighs by the share afterwards: a loss is the part of this rank in the
# loss over all ranks, divided by its share.
@pytest.mark.parametrize(
    ("values", "options", "of_rank", "expected", "summed"),
    [
        # A mean over rows is Keras's, and costs no communication.
        ([1.0, 4.0], {}, (0.25, 0.0), 2.5, []),
        ([3.0, 5.0], {"reduction": "mean_with_sample_weight"}, (0.25, 0.0), 4.0, []),
        # Three entries are valid here and one elsewhere.
        (
            [1.0, 2.0, 100.0, 5.0],
            {"weights": [10.0, 1.0, 1.0, 1.0], "mask": [True, True, False, True]},
            (0.5, 1.0),
            17 / 4 / 0.5,
            [3.0],
        ),
        (
            [3.0, 5.0],
            {
                "weights": [2.0, 1.0],
                "mask": [True, False],
                "reduction": "mean_with_sample_weight",
            },
            (0.25, 8.0),
            6 / 10 / 0.25,
            [2.0],
        ),
        # A number is a mean of the user's own, whatever is masked.
        (4.0, {"mask": [True, False]}, (0.25, 8.0), 4.0, []),
        # Nothing valid on any rank is no loss.
        ([3.0], {"mask": [False]}, (0.5, 0.0), 0.0, [0.0]),
    ],
)
def test_a_loss_divides_by_what_all_ranks_have(
    rank, values, options, of_rank, expected, summed
):
    with rank(*of_rank) as hooks:
        assert float(loss_of(values, **options)) == pytest.approx(expected)

    assert hooks.summed == summed


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_rank_without_rows_has_no_loss(rank, reduction):
    options = {"weights": [1.0], "mask": [True], "reduction": reduction}
    with rank(share=0.0, theirs=2.0):
        assert float(loss_of([3.0], **options)) == 0.0


@pytest.mark.parametrize(
    ("reduction", "value"), [*zip(REDUCTIONS, [3.25, 3.25, 13.0, 2.6], strict=True)]
)
def test_outside_of_a_step_every_loss_is_keras_s(rank, reduction, value):
    options = {"weights": [2.0, 1.0, 1.0, 1.0], "reduction": reduction}
    with rank(share=0.25, theirs=3.0, in_step=False):
        assert float(loss_of([3.0, 5.0, 1.0, 1.0], **options)) == pytest.approx(value)


def test_gradients_by_inputs_are_those_of_each_row(rank):
    rows = tf.constant([3.0, 5.0])
    with rank(share=0.25):
        with tf.GradientTape() as tape:
            tape.watch(rows)
            loss = rows * 2.0
        found = tape.gradient(loss, rows)

    assert found.numpy().tolist() == [2.0, 2.0]


def test_outside_of_a_step_a_loss_for_each_row_has_tensorflow_s_gradient(rank):
    weights = tf.Variable([3.0, 5.0])
    with rank(share=0.25, in_step=False):
        with tf.GradientTape() as tape:
            loss = weights * 1.0
        found = tape.gradient(loss, weights)

    assert found.numpy().tolist() == [1.0, 1.0]


# Metrics.


def test_outside_of_a_step_a_number_without_a_weight_counts_once(rank):
    mean = keras.metrics.Mean()
    with rank(share=0.25, in_step=False):
        mean.update_state(6.0)

    assert [float(mean.total.numpy()), float(mean.count.numpy())] == [6.0, 1.0]


@pytest.fixture
def evaluated():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"], run_eagerly=True)
    model.evaluate(np.zeros((2, 2)), np.ones((2, 1)), verbose=0)
    return model


def test_metrics_are_reset_after_the_steps_in_flight(rank, evaluated):
    class Hooks:
        is_alone = False

        def metrics_reset(self, trainer):
            seen.append(float(trainer.metrics[0].total))

    seen = []
    with rank(hooks=Hooks()):
        evaluated._distribute_strategy = tf.distribute.get_strategy()
    evaluated.reset_metrics()

    assert seen == [2.0]
    assert float(evaluated.metrics[0].total) == 0.0


def test_a_block_that_raises_leaves_no_metric_replaced(evaluated):
    with pytest.raises(ValueError, match="stop"), noted_results(evaluated):
        raise ValueError("stop")

    assert not any("result" in vars(metric) for metric in evaluated.metrics)
