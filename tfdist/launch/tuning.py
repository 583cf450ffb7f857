"""Horovod's tuning: from the options of `horovodrun` to the variables of Horovod."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_DEFAULT_WARNING_SECONDS = 60


@dataclass(frozen=True)
class _Number:
    """What a number sets, and what it may be.

    Args:
        variable: The variable that Horovod reads.
        zero: What 0 means there.
        unit: What to multiply the number by. Default 1.
    """

    variable: str
    zero: str
    unit: int = 1


_NUMBERS = {
    "fusion_threshold_mb": _Number(
        "HOROVOD_FUSION_THRESHOLD", "to send each tensor by itself", unit=2**20
    ),
    "cycle_time_ms": _Number("HOROVOD_CYCLE_TIME", "to never wait for more tensors"),
    "cache_capacity": _Number("HOROVOD_CACHE_CAPACITY", "for no cache"),
    "stall_check_warning_time_seconds": _Number(
        "HOROVOD_STALL_CHECK_TIME_SECONDS", "to warn at once"
    ),
    "stall_check_shutdown_time_seconds": _Number(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "to never end a stalled job"
    ),
}
_SWITCHES = {
    "timeline_mark_cycles": "HOROVOD_TIMELINE_MARK_CYCLES",
    "autotune": "HOROVOD_AUTOTUNE",
    "no_stall_check": "HOROVOD_STALL_CHECK_DISABLE",
}
_TEXTS = {
    "timeline": "HOROVOD_TIMELINE",
    "autotune_log_file": "HOROVOD_AUTOTUNE_LOG",
    "log_level": "HOROVOD_LOG_LEVEL",
}
# What Horovod would ignore without the other one.
_NEEDS = {"timeline_mark_cycles": "timeline", "autotune_log_file": "autotune"}

TUNING_OPTIONS = (*_NUMBERS, *_SWITCHES, *_TEXTS)


def tuning_variables(options: Mapping[str, Any]) -> dict[str, str]:
    """Write Horovod's tuning as the environment that Horovod reads.

    Horovod itself takes what it cannot use for 0, or for not given. Here it is an
    error, and so is an option that has no effect without another one.

    Args:
        options: Numbers, True, or texts, by the names in `TUNING_OPTIONS`: the options
            of `horovodrun` without dashes. What is None or False is not given.

    Returns:
        The variables of what is given.

    Raises:
        ValueError: If a number is impossible or an option would be ignored.

    Example:
        >>> tuning_variables({"fusion_threshold_mb": 2, "autotune": True})
        {'HOROVOD_FUSION_THRESHOLD': '2097152', 'HOROVOD_AUTOTUNE': '1'}
    """
    given = {
        name: options[name]
        for name in TUNING_OPTIONS
        if options.get(name) is not None and options[name] is not False
    }
    _check_numbers(given)
    _check_needs(given)
    _check_stall_times(given)
    numbers = {
        number.variable: str(given[name] * number.unit)
        for name, number in _NUMBERS.items()
        if name in given
    }
    switches = {_SWITCHES[name]: "1" for name in _SWITCHES if name in given}
    texts = {_TEXTS[name]: str(given[name]) for name in _TEXTS if name in given}
    return numbers | switches | texts


def _option(name: str) -> str:
    """Return an option as it stands on the command line."""
    return "--" + name.replace("_", "-")


def _check_numbers(given: Mapping[str, Any]) -> None:
    """Refuse numbers below 0, and those that are none."""
    for name, number in _NUMBERS.items():
        if name in given and not 0 <= given[name] < math.inf:
            raise ValueError(
                f"{_option(name)} must not be negative, nor infinite. "
                f"Received: {_option(name)} {given[name]}. Use 0 {number.zero}."
            )


def _check_needs(given: Mapping[str, Any]) -> None:
    """Refuse what has no effect without another option."""
    for name, other in _NEEDS.items():
        if name in given and other not in given:
            raise ValueError(
                f"{_option(name)} has no effect without {_option(other)}. "
                f"Received: {_option(name)} alone. "
                f"Give {_option(other)} too, or leave it out."
            )


def _check_stall_times(given: Mapping[str, Any]) -> None:
    """Refuse times of a check that is off, and an end that would never come."""
    warning, shutdown = [
        f"stall_check_{time}_time_seconds" for time in ("warning", "shutdown")
    ]
    for name in (warning, shutdown):
        if name in given and "no_stall_check" in given:
            raise ValueError(
                f"{_option(name)} has no effect with --no-stall-check. "
                "Received: both. Leave one of them out."
            )
    warning_seconds = given.get(warning, _DEFAULT_WARNING_SECONDS)
    if 0 < given.get(shutdown, 0) < warning_seconds:
        raise ValueError(
            f"{_option(shutdown)} must not be less than {_option(warning)}, as Horovod "
            "would never end the job then. "
            f"Received: {given[shutdown]} s, with a warning after {warning_seconds} s. "
            "Give a longer time, or a shorter one for the warning."
        )
