"""Amdahl's and Gustafson's law: what a serial fraction allows on more processes.

Both call the part of the work that only one process at a time can do the serial
fraction, and differ in the work of which it is a part. In training it is whatever does
not get faster with more processes: mostly the all-reduce and the wait for the slowest
rank.
"""

from collections.abc import Callable, Mapping


def amdahl_speedup(serial_fraction: float, size: float) -> float:
    """Return the speed-up of work that stays the same: strong scaling.

    The processes share the parallel part, and the serial one takes as long as ever. So
    the speed-up never exceeds 1 / serial_fraction.

    Args:
        serial_fraction: The part of one process's time that is serial, from 0 to 1.
        size: How many processes there are; a fraction where several are the unit.

    Returns:
        How many times as fast as one process.

    Raises:
        ValueError: If the fraction is not from 0 to 1 or the size below 1.

    Example:
        >>> amdahl_speedup(0.1, size=9)
        5.0

    References:
        Amdahl 1967, "Validity of the Single Processor Approach to Achieving Large Scale
        Computing Capabilities".
    """
    _check(serial_fraction, size)
    return 1.0 / (serial_fraction + (1.0 - serial_fraction) / size)


def gustafson_speedup(serial_fraction: float, size: float) -> float:
    """Return the scaled speed-up of work that grows with the processes: weak scaling.

    Each process brings parallel work of its own, and the serial part does not grow. So
    each further process adds 1 - serial_fraction, without an end.

    Args:
        serial_fraction: The part of the time of all processes that is serial, from 0
            to 1.
        size: How many processes there are; a fraction where several are the unit.

    Returns:
        How many times as much as one process does in the same time.

    Raises:
        ValueError: If the fraction is not from 0 to 1 or the size below 1.

    Example:
        >>> gustafson_speedup(0.25, size=9)
        7.0

    References:
        Gustafson 1988, "Reevaluating Amdahl's Law".
    """
    _check(serial_fraction, size)
    return serial_fraction + (1.0 - serial_fraction) * size


def fit_amdahl(speedups: Mapping[float, float]) -> float:
    """Return the serial fraction with which Amdahl's law is nearest to what is seen.

    The law is a straight line in x = 1 / size: 1 / speedup = s + (1 - s) x. Least
    squares of the errors of 1 / speedup, which is the time that the same work takes,
    have their minimum at s = sum((1 / speedup - x) (1 - x)) / sum((1 - x)^2). For a
    single measurement that is the metric of Karp and Flatt.

    Args:
        speedups: The speed-up by the number of processes. One process has the speed-up
            1 under any fraction and says nothing.

    Returns:
        From 0, also where the processes are faster than perfect, to 1.

    Raises:
        ValueError: If no size is above 1, one is below, or a speed-up is not positive.

    Example:
        >>> round(fit_amdahl({1: 1.0, 3: 2.5}), 6)
        0.1

    References:
        Karp and Flatt 1990, "Measuring Parallel Processor Performance".
    """
    return _fit(speedups, lambda size, speedup: 1.0 / speedup - 1.0 / size)


def fit_gustafson(speedups: Mapping[float, float]) -> float:
    """Return the serial fraction with which Gustafson's law is nearest to what is seen.

    Divided by the size, the law is a straight line in x = 1 / size, too:
    speedup / size = s x + (1 - s). Least squares of the errors of speedup / size, which
    is the efficiency, have their minimum at
    s = sum((1 - speedup / size) (1 - x)) / sum((1 - x)^2). Rates err by a share of
    themselves; without the division the largest run would decide alone.

    Args:
        speedups: The speed-up by the number of processes. One process has the speed-up
            1 under any fraction and says nothing.

    Returns:
        From 0, also where the processes are faster than perfect, to 1.

    Raises:
        ValueError: If no size is above 1, one is below, or a speed-up is not positive.

    Example:
        >>> round(fit_gustafson({1: 1.0, 5: 4.0}), 6)
        0.25
    """
    return _fit(speedups, lambda size, speedup: 1.0 - speedup / size)


def _fit(
    speedups: Mapping[float, float], lost: Callable[[float, float], float]
) -> float:
    """Return the slope through the origin of what was lost over 1 - 1 / size."""
    for size, speedup in speedups.items():
        _check(0.0, size)
        if not speedup > 0:
            raise ValueError(
                "speedups must be positive. "
                f"Received: a speed-up of {speedup} on {size} processes. "
                "Divide the rate of all processes by that of one."
            )
    points = [
        (1.0 - 1.0 / size, lost(size, speedup)) for size, speedup in speedups.items()
    ]
    squares = sum(x * x for x, _ in points)
    if not squares:
        raise ValueError(
            "speedups must hold more than one process. "
            f"Received: sizes {sorted(speedups)}. "
            "Measure a run with at least two processes, too."
        )
    return min(1.0, max(0.0, sum(x * y for x, y in points) / squares))


def _check(serial_fraction: float, size: float) -> None:
    """Refuse what is no fraction, and less than one process."""
    if not 0.0 <= serial_fraction <= 1.0:
        raise ValueError(
            "serial_fraction must be from 0 to 1. "
            f"Received: serial_fraction={serial_fraction}. "
            "Divide the serial time by the whole."
        )
    if not size >= 1:
        raise ValueError(
            f"size must be at least 1. Received: size={size}. "
            "Count the processes that train."
        )
