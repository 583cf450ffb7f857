"""Comparison of two runs; the numbers are worked out by hand."""

import numpy as np
import pytest

from tfdist.verify.compare import (
    coarsest,
    combined,
    common_steps,
    differences,
    dtype_of,
    noise_only,
    ordered,
    ratio,
    relative_difference,
    state_of_all,
    tolerance,
    unequal_on_ranks,
)
from tfdist.verify.recording import Entry, Layer

KERNEL, MOMENT = "m/dense/kernel", "adam/m_dense_kernel_momentum"


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1.0, 4.0], [1.0, 4.0], 0.0),
        ([1.0, 4.0], [2.0, 4.0], 0.25),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([0.0], [1e-15], 1e-3),
        ([1, 2], [1, 4], 0.5),
        ([True, False], [True, True], 1.0),
        ([np.nan, 2.0], [np.nan, 2.0], 0.0),
        ([np.inf, 2.0], [np.inf, 1.0], 0.5),
        ([np.nan, 2.0], [1.0, 2.0], np.inf),
        ([np.inf], [-np.inf], np.inf),
        ([1.0], [1.0, 1.0], np.inf),
        ([], [], 0.0),
    ],
)
def test_relative_difference(one, other, expected):
    amount = relative_difference(np.array(one), np.array(other))

    assert amount == pytest.approx(expected)


def test_the_least_exact_type_counts():
    assert coarsest(["float64"]) == "float64"
    assert coarsest(["float32", "bfloat16", "float64"]) == "bfloat16"
    assert coarsest(["int64"]) == "float32"


def test_the_tolerance_grows_with_the_steps():
    assert tolerance("float32", 10) == pytest.approx(1e-4)
    assert tolerance("float64", 1) < 1e-3 * tolerance("float32", 1)


def test_metrics_of_ranks_are_joined_as_keras_joins_them(runs):
    _, many = runs
    assert state_of_all(many, 2)["loss/total"] == pytest.approx(12.0)

    for recording in many:
        recording.entries["loss/total"].aggregation = "mean"
    assert state_of_all(many, 2)["loss/total"] == pytest.approx(6.0)

    for recording in many:
        recording.entries["loss/total"].aggregation = "none"
    assert state_of_all(many, 2)["loss/total"] == pytest.approx(9.0)


def test_ranks_with_equal_bits(runs, change):
    _, many = runs
    assert unequal_on_ranks(many, 2) == []

    change(many[1:], "m/dense/kernel", [0.8, 2.3])
    assert unequal_on_ranks(many, 2) == ["m/dense/kernel"]


def test_gradients_weigh_by_rows_in_a_step_of_keras(runs):
    _, many = runs
    many[1].raw_gradients["m/dense/kernel"] = np.array([4.5, 7.0])

    mean = combined(many, "raw_gradients")["m/dense/kernel"]

    # 3/4 of the first and 1/4 of the second.
    assert mean == pytest.approx([1.5, 1.0])


def test_gradients_add_up_in_a_custom_loop(runs):
    _, many = runs
    many[0].is_keras_step = False

    total = combined(many, "raw_gradients")["m/dense/kernel"]

    assert total == pytest.approx([1.0, -2.0])


def test_a_rank_without_rows_has_no_gradient(runs):
    _, many = runs
    many[1].batches[0].rows = 0
    many[1].raw_gradients["m/dense/kernel"] = np.array([np.nan, np.nan])

    mean = combined(many, "raw_gradients")["m/dense/kernel"]

    assert mean == pytest.approx([0.5, -1.0])


def test_a_multiple_is_found():
    one = {"a": np.array([1.0, -2.0]), "b": np.array([4.0])}
    half = {name: value / 2 for name, value in one.items()}

    assert ratio(one, half) == (pytest.approx(0.5), pytest.approx(0.0))
    # (1, 0) and (1, 1): the multiple is 1, and what is left has length 1 of sqrt(2).
    factor, rest = ratio({"a": np.array([1.0, 0.0])}, {"a": np.array([1.0, 1.0])})
    assert (factor, rest) == (1.0, pytest.approx(0.5**0.5))


def test_nothing_is_a_multiple_of_nothing():
    zero, one = {"a": np.array([0.0])}, {"a": np.array([1.0])}

    assert ratio({}, {}) == ratio(zero, zero) == (1.0, 0.0)
    assert ratio(zero, one) == ratio(one, zero) == (1.0, 1.0)


def test_nothing_can_be_told_of_an_overflow():
    assert ratio({"a": np.array([np.inf])}, {"a": np.array([np.nan])}) == (1.0, 0.0)


def too_large(one, many):
    return [(d.name, d.step) for d in differences(one, many) if d.is_too_large]


def test_runs_that_agree(runs):
    assert too_large(*runs) == []
    assert {d.amount for d in differences(*runs)} == {0.0}


def test_a_difference_is_found_from_the_step_on_at_which_it_begins(runs, change):
    one, many = runs
    change(many, KERNEL, [0.8, 2.3], first_step=2)

    assert too_large(one, many) == [(KERNEL, 2)]
    [found] = [d for d in differences(one, many) if d.is_too_large]
    assert found.amount == pytest.approx(0.1 / 2.3, rel=1e-5)


def test_the_order_is_that_of_the_forward_pass(runs):
    one, _ = runs
    one.entries["z/kernel"] = Entry("weights", "float32")
    one.entries["a/unmet"] = Entry("weights", "float32")
    one.layers.insert(0, Layer("z", "Dense", "float32", ["z/kernel"]))

    expected = ["z/kernel", KERNEL, "a/unmet", MOMENT, "loss/total"]
    assert ordered(one) == expected


def test_the_type_is_that_of_the_layers(runs):
    one, _ = runs
    assert dtype_of(one) == "float32"

    one.layers[0].dtype = "bfloat16"
    assert dtype_of(one) == "bfloat16"


def test_a_small_step_hides_no_other_gradient(runs):
    one, many = runs
    many[1].applied_gradients[KERNEL] = np.array([0.5, -1.02], np.float32)

    [found] = [d for d in differences(one, many) if d.is_too_large]

    # A fourth of the rows is the second rank's.
    assert (found.name, found.kind, found.step) == (KERNEL, "gradients", 1)
    assert found.amount == pytest.approx(0.005 / 1.005, rel=1e-3)


def test_noise_is_left_out_with_its_moments(runs, change):
    one, many = runs
    for recording, noise in zip((one, *many), (1e-9, -2e-9, 3e-9), strict=True):
        recording.entries["m/dense/bias"] = Entry("weights", "float32")
        recording.entries["adam/m_dense_bias_momentum"] = Entry("optimizer", "float32")
        recording.raw_gradients["m/dense/bias"] = np.array([noise], np.float32)
    for name in ("m/dense/bias", "adam/m_dense_bias_momentum"):
        change([one], name, [1e-3])
        change(many, name, [-1e-3])

    assert noise_only(one, many) == ["m/dense/bias"]
    assert too_large(one, many) == []


def test_a_small_gradient_that_agrees_is_no_noise(runs):
    one, many = runs
    for recording in (one, *many):
        recording.raw_gradients["m/dense/bias"] = np.array([1e-9], np.float32)

    assert noise_only(one, many) == []


def test_an_overflow_makes_no_noise(runs):
    one, many = runs
    for recording, value in zip((one, *many), (np.inf, np.inf, np.nan), strict=True):
        recording.raw_gradients[KERNEL] = np.array([value, 1.0], np.float32)

    assert noise_only(one, many) == []


def test_a_mean_may_move_as_far_as_the_noise_before_it(runs, change):
    one, many = runs
    for recording, noise in zip((one, *many), (1e-9, -2e-9, 3e-9), strict=True):
        recording.entries["m/bias"] = Entry("weights", "float32")
        recording.entries["m/moving_mean"] = Entry("state", "float32")
        recording.raw_gradients["m/bias"] = np.array([noise], np.float32)
    change([one], "m/bias", [1e-3])
    change(many, "m/bias", [-1e-3])
    change([one], "m/moving_mean", [0.01])
    change(many, "m/moving_mean", [0.012])
    assert "m/moving_mean" not in [d.name for d in differences(one, many)]

    change(many, "m/moving_mean", [0.02])
    assert ("m/moving_mean", 1) in too_large(one, many)


def test_steps_that_all_have_kept(runs):
    one, many = runs
    assert common_steps(one, many) == [1, 2]

    del many[1].states[2]
    assert common_steps(one, many) == [1]
