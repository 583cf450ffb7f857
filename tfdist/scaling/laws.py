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

    Raises:
        ValueError: If a rate is not positive or the size below 1.

    Example:
        >>> efficiency(300.0, 200.0, size=2)
        0.75
    """
    _check_size(size)
    _check_positive("examples_per_second", examples_per_second)
    _check_positive("alone_examples_per_second", alone_examples_per_second)
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

    Raises:
        ValueError: If the time is not positive, the size below 1 or the bytes negative.

    Example:
        >>> bus_bandwidth(8_000_000, size=4, seconds=0.012)
        1000000000.0
    """
    _check_size(size)
    _check_positive("seconds", seconds)
    if tensor_bytes < 0:
        raise ValueError(
            "tensor_bytes must not be negative. "
            f"Received: tensor_bytes={tensor_bytes}. "
            "Multiply the number of elements by the bytes of one."
        )
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
    """Return the scaled speed-up of work that grows with the processes (weak scaling).

    Each process adds parallel work, and the serial part does not grow, so each further
    process adds 1 - serial_fraction, without limit.

    Args:
        serial_fraction: The serial fraction of the time on all processes, from 0 to 1.
        size: Number of processes; may be fractional if the unit is several processes.

    Returns:
        The work done in the same time, relative to one process.

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
    """Return the serial fraction that fits Amdahl's law to measured speed-ups.

    The law is a straight line in x = 1 / size: 1 / speedup = s + (1 - s) x. The
    least-squares fit of 1 / speedup, the relative time, is s = sum((1 / speedup - x) (1
    - x)) / sum((1 - x)^2). For a single measurement this is the Karp-Flatt metric.

    Args:
        speedups: The speed-up by the number of processes. The speed-up 1 of one process
            is ignored.

    Returns:
        A fraction from 0, also for speed-ups above perfect, to 1.

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
    """Return the serial fraction that fits Gustafson's law to measured speed-ups.

    Divided by the size, the law is a straight line in x = 1 / size: speedup / size = s
    x + (1 - s). The least-squares fit of speedup / size, the efficiency, is s = sum((1
    - speedup / size) (1 - x)) / sum((1 - x)^2). Errors of rates are relative; without
    the division the largest run would dominate.

    Args:
        speedups: The speed-up by the number of processes. The speed-up 1 of one process
            is ignored.

    Returns:
        A fraction from 0, also for speed-ups above perfect, to 1.

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
    """Return the least-squares slope through the origin of `lost` over 1 - 1 / size."""
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
    """Reject a fraction outside 0 to 1, or fewer than one process."""
    if not 0.0 <= serial_fraction <= 1.0:
        raise ValueError(
            "serial_fraction must be from 0 to 1. "
            f"Received: serial_fraction={serial_fraction}. "
            "Divide the serial time by the whole."
        )
    _check_size(size)


def _check_positive(name: str, value: float) -> None:
    """Reject a number that is not positive, or NaN."""
    if not value > 0:
        raise ValueError(
            f"{name} must be positive. Received: {name}={value}. "
            "Measure at least one whole step."
        )


def _check_size(size: float) -> None:
    """Reject fewer than one process."""
    if not size >= 1:
        raise ValueError(
            f"size must be at least 1. Received: size={size}. "
            "Count the processes that train."
        )
