"""From options of horovodrun to variables of Horovod, by hand."""

import math

import pytest

from tfdist.launch.tuning import TUNING_OPTIONS, tuning_variables


@pytest.mark.parametrize("value", [None, False])
def test_what_is_not_given_sets_nothing(value):
    assert tuning_variables({}) == {}
    assert tuning_variables(dict.fromkeys(TUNING_OPTIONS, value)) == {}


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ({"fusion_threshold_mb": 2}, {"HOROVOD_FUSION_THRESHOLD": "2097152"}),
        ({"fusion_threshold_mb": 0}, {"HOROVOD_FUSION_THRESHOLD": "0"}),
        ({"cycle_time_ms": 0.5}, {"HOROVOD_CYCLE_TIME": "0.5"}),
        ({"cache_capacity": 0}, {"HOROVOD_CACHE_CAPACITY": "0"}),
        (
            {"timeline": "/a/b.json", "timeline_mark_cycles": True},
            {"HOROVOD_TIMELINE": "/a/b.json", "HOROVOD_TIMELINE_MARK_CYCLES": "1"},
        ),
        (
            {"autotune": True, "autotune_log_file": "/a/b"},
            {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": "/a/b"},
        ),
        ({"no_stall_check": True}, {"HOROVOD_STALL_CHECK_DISABLE": "1"}),
        (
            {
                "stall_check_warning_time_seconds": 5,
                "stall_check_shutdown_time_seconds": 5,
            },
            {
                "HOROVOD_STALL_CHECK_TIME_SECONDS": "5",
                "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "5",
            },
        ),
        (
            {"stall_check_shutdown_time_seconds": 0},
            {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0"},
        ),
        ({"log_level": "DEBUG"}, {"HOROVOD_LOG_LEVEL": "DEBUG"}),
    ],
)
def test_each_option_has_its_variable(options, variables):
    assert tuning_variables(options) == variables


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fusion_threshold_mb", -1),
        ("cycle_time_ms", -0.5),
        ("cycle_time_ms", math.inf),
        ("cycle_time_ms", math.nan),
        ("cache_capacity", -1),
        ("stall_check_warning_time_seconds", -1),
        ("stall_check_shutdown_time_seconds", -1),
    ],
)
def test_impossible_numbers_are_refused(name, value):
    option = "--" + name.replace("_", "-")
    message = (
        f"^{option} must not be negative, nor infinite. Received: {option} {value}. Use"
    )
    with pytest.raises(ValueError, match=message):
        tuning_variables({name: value})


@pytest.mark.parametrize(
    ("name", "value", "other"),
    [
        ("timeline_mark_cycles", True, "--timeline"),
        ("autotune_log_file", "a", "--autotune"),
    ],
)
def test_what_has_no_effect_alone_is_refused(name, value, other):
    option = "--" + name.replace("_", "-")
    message = (
        f"^{option} has no effect without {other}. Received: {option} alone. Give "
    )
    with pytest.raises(ValueError, match=message):
        tuning_variables({name: value})


@pytest.mark.parametrize("time", ["warning", "shutdown"])
def test_times_of_a_check_that_is_off_are_refused(time):
    name = f"stall_check_{time}_time_seconds"
    message = f"^--stall-check-{time}-time-seconds has no effect with --no-stall-check"
    with pytest.raises(ValueError, match=f"{message}. Received: both. Leave one"):
        tuning_variables({name: 90, "no_stall_check": True})


@pytest.mark.parametrize("warning", [None, 60])
def test_an_end_before_the_warning_is_refused(warning):
    options = {
        "stall_check_shutdown_time_seconds": 59,
        "stall_check_warning_time_seconds": warning,
    }
    message = "Received: 59 s, with a warning after 60 s. Give a longer time"
    with pytest.raises(ValueError, match=message):
        tuning_variables(options)
