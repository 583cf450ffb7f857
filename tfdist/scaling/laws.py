"""Speed-up, efficiency, and the laws of Amdahl and Gustafson.

In training the serial fraction is mostly the all-reduce and the wait for slow ranks.
"""

from collections.abc import Callable, Mapping


def efficiency(
    examples_per_second: float, alone_examples_per_second: float, size: int
) -> float:
    """Return the fraction of perfect speed-up that several processes reach.

    Expressed in rates, it is the same for weak and strong scaling.

    Args:
        examples_per_second: Rate of all processes together.
        alone_examples_per_second: Rate of one process alone.
        size: Number of processes.

    Returns:
        Speed-up divided by size; 1.0 is perfect.

    Example:
        >>> efficiency(300.0, 200.0, size=2)
        0.75
    """
    return examples_per_second / alone_examples_per_second / size


def bus_bandwidth(tensor_bytes: int, size: int, seconds: float) -> float:
    """Return the bytes per second that an all-reduce moves through each process's link.

    With any algorithm, every process must send at least 2 (n - 1) / n times the tensor.
    Counting those bytes makes results comparable across numbers of processes, and with
    the link itself.

    Args:
        tensor_bytes: Size of the reduced tensor.
        size: Number of processes, n. A single process moves nothing.
        seconds: Time of one all-reduce.

    Returns:
        Bytes per second.

    Example:
        >>> bus_bandwidth(8_000_000, size=4, seconds=0.012)
        1000000000.0
    """
    return tensor_bytes * 2 * (size - 1) / size / seconds


def amdahl_speedup(serial_fraction: float, size: float) -> float:
    """Return the speed-up of a fixed amount of work (strong scaling).

    The processes share the parallel part, and the serial part takes constant time, so
    the speed-up never exceeds 1 / serial_fraction.

    Args:
        serial_fraction: The serial fraction of one process's time, from 0 to 1.
        size: Number of processes; may be fractional if the unit is several processes.

    Returns:
        The speed-up over one process.

    Example:
        >>> amdahl_speedup(0.1, size=9)
        5.0

    References:
        Amdahl 1967, "Validity of the Single Processor Approach to Achieving Large Scale
        Computing Capabilities".
    """
    return 1.0 / (serial_fraction + (1.0 - serial_fraction) / size)


def gustafson_speedup(serial_fraction: float, size: float) -> float:
    """Return the scaled speed-up of work that grows with the processes (weak scaling).

    Each process adds parallel work, and the serial part does not grow, so each further
    process adds 1 - serial_fraction, without limit.

    Args:
        serial_fraction: The serial fraction of the time on all processes, from 0 to 1.
        size: Number of processes; may be fractional if the unit is several processes.

    Returns:
        The work done in the same time, relative to one process.

    Example:
        >>> gustafson_speedup(0.25, size=9)
        7.0

    References:
        Gustafson 1988, "Reevaluating Amdahl's Law".
    """
    return serial_fraction + (1.0 - serial_fraction) * size


def fit_amdahl(speedups: Mapping[float, float]) -> float:
    """Return the serial fraction that fits Amdahl's law to measured speed-ups.

    The law is a straight line in x = 1 / size: 1 / speedup = s + (1 - s) x. The
    least-squares fit of 1 / speedup, the relative time, is s = sum((1 / speedup - x) (1
    - x)) / sum((1 - x)^2). For a single measurement this is the Karp-Flatt metric.

    Args:
        speedups: The speed-up by the number of processes, one of them above 1. The
            speed-up 1 of one process is ignored.

    Returns:
        A fraction from 0, also for speed-ups above perfect, to 1.

    Example:
        >>> round(fit_amdahl({1: 1.0, 3: 2.5}), 6)
        0.1

    References:
        Karp and Flatt 1990, "Measuring Parallel Processor Performance".
    """
    return _fit(speedups, lambda size, speedup: 1.0 / speedup - 1.0 / size)


def fit_gustafson(speedups: Mapping[float, float]) -> float:
    """Return the serial fraction that fits Gustafson's law to measured speed-ups.

    Divided by the size, the law is a straight line in x = 1 / size: speedup / size = s
    x + (1 - s). The least-squares fit of speedup / size, the efficiency, is s = sum((1
    - speedup / size) (1 - x)) / sum((1 - x)^2). Errors of rates are relative; without
    the division the largest run would dominate.

    Args:
        speedups: The speed-up by the number of processes, one of them above 1. The
            speed-up 1 of one process is ignored.

    Returns:
        A fraction from 0, also for speed-ups above perfect, to 1.

    Example:
        >>> round(fit_gustafson({1: 1.0, 5: 4.0}), 6)
        0.25
    """
    return _fit(speedups, lambda size, speedup: 1.0 - speedup / size)


def _fit(
    speedups: Mapping[float, float], lost: Callable[[float, float], float]
) -> float:
    """Return the least-squares slope through the origin of `lost` over 1 - 1 / size."""
    points = [
        (1.0 - 1.0 / size, lost(size, speedup)) for size, speedup in speedups.items()
    ]
    squares = sum(x * x for x, _ in points)
    return min(1.0, max(0.0, sum(x * y for x, y in points) / squares))
