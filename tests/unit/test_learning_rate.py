"""The rules for large batches, against numbers worked out by hand.

tests/distributed has the steps of a warm-up.
"""

import math

import pytest

from tfdist.learning_rate import (
    exponential_multiplier,
    scale,
    scale_factor,
    warmup_multiplier,
)


@pytest.mark.parametrize(
    ("rule", "size", "factor"),
    [
        ("linear", 8, 8.0),
        ("linear", 1, 1.0),
        ("linear", 0.5, 0.5),
        ("sqrt", 16, 4.0),
        ("sqrt", 2, math.sqrt(2)),
        ("none", 8, 1.0),
    ],
)
def test_each_rule_has_its_factor(rule, size, factor):
    assert scale_factor(rule, size) == factor
    assert scale(0.1, rule, size) == pytest.approx(0.1 * factor, rel=1e-15)


def test_linear_is_the_default_and_a_process_alone_changes_nothing():
    assert scale(0.1, size=4) == 0.4
    assert (scale_factor(), scale_factor("sqrt"), scale(0.3)) == (1.0, 1.0, 0.3)


def test_the_size_is_that_of_the_job(monkeypatch):
    monkeypatch.setattr("tfdist.learning_rate._size", lambda: 4)

    assert (scale_factor(), scale_factor("sqrt")) == (4.0, 2.0)


def test_an_unknown_rule_is_refused():
    with pytest.raises(
        ValueError,
        match=r"^rule must be one of 'linear', 'sqrt', 'none'\. Received: "
        r"rule='square'\. Use 'linear' for SGD, 'sqrt' for Adam\.$",
    ):
        scale_factor("square")


@pytest.mark.parametrize("size", [0, -1, math.nan, "4", True])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(
        ValueError,
        match=rf"^size must be a positive number\. Received: size={size!r}\. Give",
    ):
        scale_factor("linear", size)


@pytest.mark.parametrize("rate", [0.0, -0.1, math.nan])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(
        ValueError,
        match=r"^learning_rate must be a positive number\. Received: learning_",
    ):
        scale(rate)


@pytest.mark.parametrize(
    ("epoch", "expected"), [(5, 1.0), (6, 0.1), (7, 0.01), (5.5, 0.31622776601683794)]
)
def test_a_constant_decays_from_its_first_epoch(epoch, expected):
    assert exponential_multiplier(0.1, epoch, start_epoch=5) == pytest.approx(expected)


def test_one_process_needs_no_warmup():
    assert warmup_multiplier(0.0, size=1, warmup_epochs=5, steps_per_epoch=10) == 1.0


@pytest.mark.parametrize("name", ["size", "warmup_epochs", "steps_per_epoch"])
def test_a_warmup_over_nothing_is_refused(name):
    arguments = {"size": 2, "warmup_epochs": 5, "steps_per_epoch": 10, name: 0}

    with pytest.raises(
        ValueError, match=rf"^{name} must be positive\. Received: {name}=0\. Leave"
    ):
        warmup_multiplier(0.0, **arguments)
