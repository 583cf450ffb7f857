import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.losses import loss as loss_module

from tfdist.compat.keras import losses_and_metrics as losses

REDUCTIONS = ["sum_over_batch_size", "mean", "sum", "mean_with_sample_weight"]


class Hooks:
    """A rank's hooks, with what the other ranks add to a sum."""

    def __init__(self, share, theirs, in_step=True):
        self._share, self._theirs = share, theirs
        self.in_step = in_step
        self.summed = []

    def share(self):
        return tf.constant(self._share, tf.float64)

    def sum_over_ranks(self, value, what):
        self.summed.append((float(value), what))
        return value + self._theirs


@pytest.fixture
def rank(monkeypatch):
    """Put the patch on; return what makes the hooks of a rank in a step."""
    monkeypatch.setattr(
        loss_module, "reduce_weighted_values", losses._reduce_over_ranks
    )

    def be(share=1.0, theirs=0.0, **options):
        hooks = Hooks(share, theirs, **options)
        monkeypatch.setattr(losses, "current_hooks", lambda: hooks)
        return hooks

    monkeypatch.setattr(losses, "current_hooks", lambda: None)
    return be


def reduced(values, *, weights=None, mask=None, reduction="sum_over_batch_size"):
    values = tf.constant(values)
    weights = None if weights is None else tf.constant(weights)
    mask = None if mask is None else tf.constant(mask)
    return losses._reduce_over_ranks(values, weights, mask, reduction, "float32")


def mse(**options):
    ones, zeros = np.ones((4, 1), "float32"), np.zeros((4, 1), "float32")
    weights = np.array([1.0, 2.0, 3.0, 4.0], "float32")
    loss = keras.losses.MeanSquaredError(**options)
    return float(loss(ones, zeros, sample_weight=weights))


# Keras does what the patch relies on.


def test_keras_calls_what_the_patch_replaces(monkeypatch):
    monkeypatch.setattr(loss_module, "reduce_weighted_values", lambda *a, **k: 7.0)

    assert mse() == 7.0


def test_keras_gives_it_the_mask_and_the_weights(monkeypatch):
    given = []

    def reduce(values, **options):
        given.append(options)
        return 0.0

    monkeypatch.setattr(loss_module, "reduce_weighted_values", reduce)
    y = tf.ones([2, 3])
    keras.src.backend.set_keras_mask(y, tf.constant([True, False]))
    keras.losses.MeanAbsoluteError("sum")(y, y, sample_weight=tf.ones([2]))

    (options,) = given
    assert set(options) == {"sample_weight", "mask", "reduction", "dtype"}
    assert options["mask"].numpy().tolist() == [True, False]
    assert options["reduction"] == "sum"


def test_a_mean_divides_by_rows_of_weights_and_by_valid_entries_of_a_mask():
    values, weights = tf.constant([1.0, 2.0, 6.0]), tf.constant([2.0, 0.0, 1.0])
    mask = tf.constant([True, False, True])
    plain = losses._reduce_weighted_values

    assert float(plain(values, weights)) == pytest.approx(8 / 3)
    assert float(plain(values, weights, mask)) == pytest.approx(8 / 2)
    assert float(plain(values, weights, None, "mean_with_sample_weight")) == (
        pytest.approx(8 / 3)
    )


def test_weights_and_mask_are_merged_by_keras_s_own_function(monkeypatch):
    mask = tf.constant([True, False, True])

    found = losses._weights([2.0, 5.0, 1.0], mask, "float32")
    assert found.numpy().tolist() == [2.0, 0.0, 1.0]
    assert losses._weights(None, None, "float32") is None
    assert losses._weights(None, mask, "float32").numpy().tolist() == [1.0, 0.0, 1.0]
    monkeypatch.setattr(loss_module, "apply_mask", lambda *a, **k: tf.constant([3.0]))
    assert (
        float(losses._reduce_weighted_values(tf.constant([2.0]), reduction="sum")) == 6
    )


# Outside of steps.


@pytest.mark.parametrize("in_step", [None, False])
@pytest.mark.parametrize(
    ("reduction", "value"), [*zip(REDUCTIONS, [2.5, 2.5, 10.0, 1.0], strict=True)]
)
def test_outside_of_a_step_every_loss_is_keras_s(rank, in_step, reduction, value):
    if in_step is not None:
        rank(share=0.25, theirs=3.0, in_step=in_step)

    assert mse(reduction=reduction) == pytest.approx(value)


# In a step. The gradient weighs by the share afterwards: what is returned here is the
# part of this rank in the loss over all, divided by its share.


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean"])
def test_a_mean_over_rows_is_keras_s_and_costs_nothing(rank, reduction):
    hooks = rank(share=0.25)

    assert mse(reduction=reduction) == 2.5
    assert hooks.summed == []


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean"])
def test_a_mask_divides_by_the_valid_entries_of_all_ranks(rank, reduction):
    """Three are valid here and one elsewhere; of the rows half are here."""
    hooks = rank(share=0.5, theirs=1.0)

    loss = reduced(
        [[1.0, 2.0], [5.0, 100.0]],
        mask=[[True, True], [True, False]],
        reduction=reduction,
    )

    assert float(loss) == (1 + 2 + 5) / 4 / 0.5
    assert hooks.summed == [(3.0, "divisor of a loss")]


def test_a_mask_and_weights_divide_by_valid_entries(rank):
    rank(share=0.5, theirs=1.0)

    loss = reduced(
        [1.0, 2.0, 100.0, 5.0],
        weights=[10.0, 1.0, 1.0, 1.0],
        mask=[True, True, False, True],
    )

    assert float(loss) == (10 + 2 + 5) / 4 / 0.5


def test_weights_divide_by_those_of_all_ranks_where_this_is_asked_for(rank):
    hooks = rank(share=0.25, theirs=7.0)

    loss = reduced([3.0, 5.0], weights=[2.0, 1.0], reduction="mean_with_sample_weight")

    assert float(loss) == pytest.approx((6 + 5) / 10 / 0.25)
    assert hooks.summed == [(3.0, "divisor of a loss")]


def test_a_mask_makes_its_entries_weigh_nothing_there(rank):
    rank(share=0.25, theirs=8.0)

    loss = reduced(
        [3.0, 5.0],
        weights=[2.0, 1.0],
        mask=[True, False],
        reduction="mean_with_sample_weight",
    )

    assert float(loss) == pytest.approx(6 / 10 / 0.25)


def test_without_weights_that_is_a_mean_over_rows(rank):
    hooks = rank(share=0.25)

    loss = reduced([3.0, 5.0], reduction="mean_with_sample_weight")

    assert float(loss) == 4.0
    assert hooks.summed == []


def test_a_sum_is_divided_by_the_share_that_it_will_weigh(rank):
    rank(share=0.25)

    assert float(reduced([3.0, 5.0], reduction="sum")) == 32.0
    assert mse(reduction="sum") == 40.0


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_rank_without_rows_has_no_loss_by_a_divisor_of_all(rank, reduction):
    rank(share=0.0, theirs=2.0)

    loss = float(reduced([3.0], mask=[True], weights=[1.0], reduction=reduction))

    assert loss == 0.0


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nothing_valid_on_any_rank_is_no_loss(rank, reduction):
    rank(share=0.5, theirs=0.0)

    assert float(reduced([3.0], mask=[False], reduction=reduction)) == 0.0


@pytest.mark.parametrize("reduction", ["none", None])
def test_what_is_not_reduced_is_left_alone(rank, reduction):
    hooks = rank(share=0.25)

    loss = reduced([3.0, 5.0], mask=[True, True], reduction=reduction)

    assert loss.numpy().tolist() == [3.0, 5.0]
    assert hooks.summed == []


def test_the_gradient_is_that_of_all_ranks(rank):
    rank(share=0.5, theirs=1.0)
    x = tf.Variable([1.0, 2.0, 3.0])
    with tf.GradientTape() as tape:
        mask = tf.constant([True, False, True])
        loss = losses._reduce_over_ranks(x * x, mask=mask)

    gradient = tape.gradient(loss, x).numpy() * 0.5
    np.testing.assert_allclose(gradient, [2 / 3, 0.0, 6 / 3], rtol=1e-6)


# Losses of rows.


def model(**options):
    made = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    made.compile("sgd", **options)
    return made


def of_rows(values, compute=losses._compute_loss_of_rows):
    """Return the loss of a model whose loss is these values, and its gradient."""
    made = model(loss="mse")
    made.compute_loss = lambda x, y, y_pred, sample_weight, training: values * 1.0
    with tf.GradientTape() as tape:
        tape.watch(values)
        loss = compute(made, None, None, None, None, True)
    return loss, tape.gradient(loss, values)


def test_keras_s_steps_compute_their_loss_by_that_name(monkeypatch):
    asked = []

    def compute(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        asked.append(training)
        return losses._compute_loss(self, x, y, y_pred, sample_weight, training)

    monkeypatch.setattr(losses.Trainer, "_compute_loss", compute)
    made, data = model(loss="mse", run_eagerly=True), (tf.ones([2, 1]),) * 2
    made.train_step(data)
    made.test_step(data)

    assert asked == [True, False]


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_a_loss_for_each_row_has_the_gradient_of_the_sum_over_all_ranks(rank, share):
    rank(share=share)

    loss, gradient = of_rows(tf.constant([3.0, 5.0]))

    assert loss.numpy().tolist() == [3.0, 5.0]
    assert (gradient * share).numpy().tolist() == [1.0, 1.0]


@pytest.mark.parametrize("share", [1 / 3, 1 / 1024])
def test_its_value_is_not_even_rounded(rank, share):
    rank(share=share)
    values = tf.constant(np.random.default_rng(3).random(64), tf.float32)

    assert of_rows(values)[0].numpy().tolist() == values.numpy().tolist()


def test_a_rank_without_rows_has_no_gradient_of_them(rank):
    rank(share=0.0)

    loss, gradient = of_rows(tf.constant([3.0, 5.0]))

    assert loss.numpy().tolist() == [3.0, 5.0]
    assert gradient.numpy().tolist() == [0.0, 0.0]


def test_one_number_for_all_rows_is_left_alone(rank):
    rank(share=0.25)

    loss, gradient = of_rows(tf.constant(3.0))

    assert (float(loss), float(gradient)) == (3.0, 1.0)


@pytest.mark.parametrize("in_step", [None, False])
def test_outside_of_a_step_a_loss_for_each_row_is_keras_s(rank, in_step):
    if in_step is not None:
        rank(share=0.25, in_step=in_step)

    assert of_rows(tf.constant([3.0, 5.0]))[1].numpy().tolist() == [1.0, 1.0]


def test_no_loss_is_left_alone(rank):
    rank(share=0.25)
    made = model(loss="mse")
    made.compute_loss = lambda *args, **options: None

    assert losses._compute_loss_of_rows(made) is None
