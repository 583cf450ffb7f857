"""Scales by hand: 8 grows to 16 after three finite steps, and shrinks to 4."""

import dataclasses

import pytest

from tfdist.mixed_precision.scale_rule import (
    GROWTH_STEPS,
    LossScaleOptions,
    ScaleRule,
    ScaleState,
    make_rule,
)

START = ScaleState(scale=8.0, step_counter=0, overflow_counter=0, skipped_steps=0)


def rule(**options):
    return ScaleRule(**{"initial_scale": 8.0, "dynamic_growth_steps": 3, **options})


def states(rule, steps, state=START):
    """Return the states after each step: "." is finite, "x" overflows."""
    found = []
    for step in steps:
        state = rule.after(state, step == ".")
        found.append((float(state.scale), *(int(count) for count in state[1:])))
    return found


def scales(rule, steps, state=START):
    return [scale for scale, *_ in states(rule, steps, state)]


def test_the_scale_grows_after_as_many_finite_steps_as_asked_for():
    assert states(rule(), "....") == [
        (8.0, 1, 0, 0),
        (8.0, 2, 0, 0),
        (16.0, 0, 0, 0),
        (16.0, 1, 0, 0),
    ]


def test_an_overflow_lowers_the_scale_and_starts_the_count_anew():
    assert states(rule(), "..x..") == [
        (8.0, 1, 0, 0),
        (8.0, 2, 0, 0),
        (4.0, 0, 1, 1),
        (4.0, 1, 1, 1),
        (4.0, 2, 1, 1),
    ]


def test_hysteresis_tolerates_overflows_then_lowers_at_each():
    assert states(rule(hysteresis=3), "xx.xx") == [
        (8.0, 0, 1, 1),
        (8.0, 0, 2, 2),
        (8.0, 1, 2, 2),
        (4.0, 0, 3, 3),
        (2.0, 0, 3, 4),
    ]


def test_hysteresis_begins_anew_when_the_scale_has_grown():
    assert states(rule(hysteresis=2), "x...xx")[2:] == [
        (8.0, 2, 1, 1),
        (16.0, 0, 0, 1),
        (16.0, 0, 1, 2),
        (8.0, 0, 2, 3),
    ]


def test_the_scale_stays_within_its_limits():
    limited = rule(minimum_scale=3.0, maximum_scale=20.0)

    assert scales(limited, "xxx") == [4.0, 3.0, 3.0]
    assert scales(limited, "......") == [8.0, 8.0, 16.0, 16.0, 16.0, 20.0]


def test_a_static_scale_stays_and_skipped_steps_are_counted():
    assert states(rule(dynamic=False), "....xx")[-1] == (8.0, 0, 0, 2)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("initial_scale", 0.0, "must be positive and finite in float32. Received: "),
        ("initial_scale", float("inf"), "initial_scale=inf. Give a power of two"),
        ("initial_scale", "8", "Received: initial_scale='8'"),
        ("dynamic_growth_steps", 0, "must be a positive integer. Received: "),
        ("dynamic_growth_steps", True, "Received: dynamic_growth_steps=True"),
        ("growth_factor", 1.0, "greater than 1. Received: growth_factor=1.0. Use 2.0"),
        ("backoff_factor", 1.0, "between 0 and 1. Received: backoff_factor=1.0. Use"),
        ("dynamic", 1, "dynamic must be True or False. Received: dynamic=1. Use False"),
    ],
)
def test_values_out_of_range_are_refused(name, value, message):
    with pytest.raises(ValueError, match=message):
        rule(**{name: value})


@pytest.mark.parametrize("limits", [{"minimum_scale": 9.0}, {"maximum_scale": 7.0}])
def test_the_first_scale_lies_within_the_limits(limits):
    with pytest.raises(ValueError, match=r"Received: initial_scale=8.0, .*Move the"):
        rule(**limits)


def test_every_option_is_a_value_of_the_rule_with_the_same_type():
    fields = {field.name: field.type for field in dataclasses.fields(ScaleRule)}
    arguments = {"initial_scale", "dynamic_growth_steps"}

    assert set(fields) - arguments == set(LossScaleOptions.__annotations__)
    for name, kind in LossScaleOptions.__annotations__.items():
        assert fields[name] == kind


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"hysteresys": 2}, "no option 'hysteresys'. Received: hysteresys=2. Its o"),
        ({"clipnorm": 1.0}, "clipping, .* are options of the inner optimizer"),
    ],
)
def test_unknown_options_are_refused(option, message):
    with pytest.raises(ValueError, match=message):
        make_rule(8.0, GROWTH_STEPS, option)


@pytest.mark.parametrize(
    ("steps", "option"), [(GROWTH_STEPS, {"growth_factor": 3.0}), (9, {})]
)
def test_what_a_static_scale_cannot_honour_is_refused(steps, option):
    with pytest.raises(
        ValueError,
        match=r"(or|steps) must be left out .*Received: dynamic=False, .*Leave",
    ):
        make_rule(8.0, steps, {**option, "dynamic": False})
