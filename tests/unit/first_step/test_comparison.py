"""Differences of a step, and what they are said to be."""

import math

import pytest
import tensorflow as tf

from tfdist.first_step.comparison import (
    Difference,
    differences,
    explained,
    without_rounding,
)
from tfdist.first_step.observation import Value


def values(kind, **numbers):
    return [Value(kind, name, tf.constant(its)) for name, its in numbers.items()]


def compare(one, many, dtype="float32"):
    return [
        (d.name, round(d.amount, 3), d.factor and round(d.factor, 3))
        for d in differences(one, many, dtype)
    ]


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ([3.0, 4.0], []),
        ([3.0, 4.001], []),
        ([1.5, 2.0], [("a", 0.5, 0.5)]),
        ([4.0, 3.0], [("a", 0.283, None)]),
        ([math.nan, 4.0], [("a", math.inf, None)]),
        ([3.0, 4.0, 5.0], [("a", math.inf, None)]),
    ],
)
def test_gradients_differ_by_a_part_of_their_norm(other, found):
    assert (
        compare(values("gradient", a=[3.0, 4.0]), values("gradient", a=other)) == found
    )


def test_small_gradients_are_rounding():
    one = values("gradient", large=[1.0], small=[1e-5])
    many = values("gradient", large=[1.0], small=[2e-5])

    assert compare(one, many) == []
    assert compare(one, many, "float64") == [("small", 0.5, 2.0)]


def test_values_that_only_one_has_differ():
    one, many = values("new value", a=[1.0]), values("new value", a=[1.0], b=[1.0])

    assert compare(one, many) == [("b", math.inf, None)]


@pytest.mark.parametrize(
    ("kind", "factor", "text"),
    [
        ("gradient", 0.5, "0.5 times on two ranks: the loss is a sum over rows"),
        ("gradient", 2.0, "something computed over all rows of a batch, or from"),
        ("gradient", 1.3, "something computed over all rows of a batch, or from"),
        ("squared gradient", 0.5, "a table that all ranks look up alike"),
        ("new value", 0.5, "state of a layer that is not a mean over rows"),
        ("result", 2.0, "a metric that is not a sum over rows"),
    ],
)
def test_the_likely_cause_is_said(kind, factor, text):
    one, many = values(kind, a=[1.0, 2.0]), values(kind, a=[factor, 2.0 * factor])
    cause = explained(differences(one, many, "float32"), "first step", is_even=True)

    start = f"The first step differs from that of one process: the {kind} of 'a' is "
    assert cause.evidence == f"{start}{factor:.3g} times that of one process."
    assert cause.name.startswith(text)


@pytest.mark.parametrize(
    ("amount", "own", "is_left"),
    [(0.01, 0.005, False), (0.08, 0.005, True), (0.5, 0.2, True), (0.01, 0.0, True)],
)
def test_what_the_rounding_of_one_process_explains_is_left_out(amount, own, is_left):
    found = [Difference("gradient", "a", amount, None)]
    rounding = [Difference("gradient", "a", own, None)]

    assert without_rounding(found, rounding) == (found if is_left else [])
    # The order of rows matters to the step.
    rounding += [Difference("result", "loss", 0.2, None)]
    assert without_rounding(found, rounding) == found
