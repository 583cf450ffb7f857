"""What the figures of several processes mean against those of one: pure arithmetic."""


def efficiency(
    examples_per_second: float, alone_examples_per_second: float, size: int
) -> float:
    """Return the share of perfect speed-up that several processes reach.

    In rates it is the same for weak and for strong scaling; with step times at hand,
    use `weak_scaling_efficiency` or `strong_scaling_efficiency`.

    Args:
        examples_per_second: Rate of all processes together.
        alone_examples_per_second: Rate of one process alone.
        size: How many processes there are.

    Returns:
        Speed-up over size; 1.0 is perfect.

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


def weak_scaling_efficiency(step_seconds: float, alone_step_seconds: float) -> float:
    """Return the efficiency when each process keeps its batch, so that the work grows.

    Args:
        step_seconds: Time of a step on all processes.
        alone_step_seconds: Time of a step of one process, with the batch that each of
            the others has too.

    Returns:
        1.0 if a step takes no longer than alone.

    Raises:
        ValueError: If a time is not positive.

    Example:
        >>> weak_scaling_efficiency(0.040, alone_step_seconds=0.030)
        0.75
    """
    _check_positive("step_seconds", step_seconds)
    _check_positive("alone_step_seconds", alone_step_seconds)
    return alone_step_seconds / step_seconds


def strong_scaling_efficiency(
    step_seconds: float, alone_step_seconds: float, size: int
) -> float:
    """Return the efficiency when the processes share one batch, so that it is cut.

    Args:
        step_seconds: Time of a step on all processes.
        alone_step_seconds: Time of a step of one process, with the whole batch.
        size: How many processes there are.

    Returns:
        1.0 if a step takes `size` times less than alone.

    Raises:
        ValueError: If a time is not positive or the size below 1.

    Example:
        >>> strong_scaling_efficiency(0.020, alone_step_seconds=0.030, size=2)
        0.75
    """
    _check_size(size)
    return weak_scaling_efficiency(step_seconds, alone_step_seconds) / size


def waiting_share(step_seconds: float, alone_step_seconds: float) -> float:
    """Return the share of a step that is spent on the collective and on the peers.

    Args:
        step_seconds: Time of a step on all processes.
        alone_step_seconds: Time of the same step without a collective: one process with
            the batch that each has.

    Returns:
        A number from 0.0 to below 1.0. Noise can make the step alone the longer one;
        then nothing was spent that could be seen, and the share is 0.0.

    Raises:
        ValueError: If a time is not positive.

    Example:
        >>> waiting_share(0.040, alone_step_seconds=0.030)
        0.25
    """
    return max(0.0, 1.0 - weak_scaling_efficiency(step_seconds, alone_step_seconds))


def bus_bandwidth(tensor_bytes: int, size: int, seconds: float) -> float:
    """Return the bytes per second that an all-reduce moves through each process's link.

    Whatever the algorithm, every process must send at least 2 (n - 1) / n times
    the tensor. Counting those bytes makes the figures of different sizes comparable
    with each other and with the link itself.

    Args:
        tensor_bytes: Size of the tensor that is reduced.
        size: How many processes there are, n. One alone moves nothing.
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


def _check_positive(name: str, value: float) -> None:
    """Refuse what no measurement can give; NaN too, which is no figure."""
    if not value > 0:
        raise ValueError(
            f"{name} must be positive. Received: {name}={value}. "
            "Measure at least one whole step."
        )


def _check_size(size: int) -> None:
    """Refuse fewer than one process."""
    if size < 1:
        raise ValueError(
            f"size must be at least 1. Received: size={size}. "
            "Count the processes that train."
        )
