"""How far two runs are apart; numbers worked out by hand."""

import numpy as np
import pytest

from tfdist.verify.compare import (
    coarsest,
    combined,
    ratio,
    relative_difference,
    state_of_all,
    tolerance,
    unequal_on_ranks,
)


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


def test_other_variables_are_the_first_ranks(runs):
    _, many = runs

    assert state_of_all(many, 1)["m/dense/kernel"] == pytest.approx([0.9, 2.1])


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
