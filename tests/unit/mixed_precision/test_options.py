import dataclasses

import pytest

from tfdist.mixed_precision.options import (
    GROWTH_STEPS,
    LossScaleOptions,
    config_of,
    make_rule,
)
from tfdist.mixed_precision.scale_rule import ScaleRule


def test_every_option_is_a_value_of_the_rule_with_the_same_type():
    fields = {field.name: field.type for field in dataclasses.fields(ScaleRule)}
    arguments = {"initial_scale", "dynamic_growth_steps"}

    assert set(fields) - arguments == set(LossScaleOptions.__annotations__)
    for name, kind in LossScaleOptions.__annotations__.items():
        assert fields[name] == kind


def test_options_reach_the_rule():
    rule = make_rule(16.0, 5, {"hysteresis": 2, "maximum_scale": 64.0})

    assert rule == ScaleRule(16.0, 5, hysteresis=2, maximum_scale=64.0)


@pytest.mark.parametrize(
    "options", [{}, {"hysteresis": 3, "growth_factor": 4.0}, {"dynamic": False}]
)
def test_the_config_makes_the_same_rule(options):
    rule = make_rule(16.0, GROWTH_STEPS, options)
    config = config_of(rule)

    again = make_rule(
        config.pop("initial_scale"),
        config.pop("dynamic_growth_steps", GROWTH_STEPS),
        config,
    )

    assert again == rule


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"hysteresys": 2}, "no option 'hysteresys'. Received: hysteresys=2. Did you"),
        ({"min_scale": 2}, "Its options are: growth_factor, backoff_factor, hyster"),
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
