"""Rules that adapt the learning rate to large batches, as pure functions.

`tfdist.callbacks` applies them during `fit`.
"""

import math
from collections.abc import Callable

from tfdist.cluster.facts import size as _size

__all__ = ["exponential_multiplier", "scale", "scale_factor", "warmup_multiplier"]

_RULES: dict[str, Callable[[float], float]] = {
    "linear": float,
    "sqrt": math.sqrt,
    "none": lambda size: 1.0,
}


def scale(
    learning_rate: float, rule: str = "linear", size: float | None = None
) -> float:
    """Return the learning rate for a larger batch.

    Args:
        learning_rate: The rate for the batch of one process.
        rule: "linear", "sqrt" or "none"; see `scale_factor`.
        size: The factor by which the batch is larger. Default None: the number of
            ranks, if each has the batch of one process.

    Returns:
        The rate times the factor of the rule.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> scale(0.1, size=8)
        0.8
        >>> scale(0.001, rule="sqrt", size=16)
        0.004
    """
    if not isinstance(learning_rate, int | float) or not learning_rate > 0:
        raise ValueError(
            "learning_rate must be a positive number. "
            f"Received: learning_rate={learning_rate!r}. "
            "Give the rate that suits the batch of one process."
        )
    return learning_rate * scale_factor(rule, size)


def scale_factor(rule: str = "linear", size: float | None = None) -> float:
    """Return the factor by which a larger batch increases the learning rate.

    With a batch k times as large, SGD makes k times fewer steps, so each should be k
    times as long: the linear rule. Adam and similar optimizers divide by the noise of
    the gradient, which falls with the square root of the batch: the square-root rule.

    Args:
        rule: "linear", "sqrt", or "none" for 1.
        size: The factor by which the batch is larger. Default None: the number of
            ranks.

    Returns:
        The factor, at least 1 if the batch is larger.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> scale_factor("linear", size=8), scale_factor("sqrt", size=4)
        (8.0, 2.0)

    References:
        Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour",
        section 2.1, for the linear rule. Krizhevsky 2014, "One weird trick for
        parallelizing convolutional neural networks", section 5, for the other.
    """
    if rule not in _RULES:
        raise ValueError(
            f"rule must be one of {', '.join(map(repr, _RULES))}. "
            f"Received: rule={rule!r}. Use 'linear' for SGD, 'sqrt' for Adam."
        )
    if size is None:
        size = _size()
    if isinstance(size, bool) or not isinstance(size, int | float) or not size > 0:
        raise ValueError(
            f"size must be a positive number. Received: size={size!r}. "
            "Give how many times larger the batch is, or leave it out."
        )
    return float(_RULES[rule](size))


def exponential_multiplier(factor: float, epoch: float, start_epoch: int = 0) -> float:
    """Return the multiplier of a decay by a constant factor per epoch.

    Args:
        factor: The factor of one epoch; below 1 the rate falls.
        epoch: The epoch, from 0, with a fractional part within an epoch.
        start_epoch: The epoch at which the multiplier is 1. Default 0.

    Returns:
        The factor to the power of the epochs since `start_epoch`.

    Example:
        >>> exponential_multiplier(0.5, epoch=7, start_epoch=5)
        0.25
    """
    return float(factor ** (epoch - start_epoch))


def warmup_multiplier(
    epoch: float, size: float, warmup_epochs: float, steps_per_epoch: int
) -> float:
    """Return the multiplier of a linear warm-up to a scaled learning rate.

    A rate that was scaled by the number of processes is too high for the first steps.
    The warm-up starts near the rate of one process and adds the same amount in every
    step, until its last step has the multiplier 1.

    Args:
        epoch: The epoch, from 0, with the part of it that is done: 2.5 after half of
            the third epoch.
        size: The factor between the scaled rate and that of one process: the number of
            processes.
        warmup_epochs: Length of the warm-up in epochs.
        steps_per_epoch: Steps per epoch.

    Returns:
        A number from just above 1 / size to 1.

    Raises:
        ValueError: If an argument is not positive.

    Example:
        >>> warmup_multiplier(0.0, size=4, warmup_epochs=3, steps_per_epoch=10)
        0.275
        >>> warmup_multiplier(2.9, size=4, warmup_epochs=3, steps_per_epoch=10)
        1.0

    References:
        Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour",
        section 2.2.
    """
    for name, value in (
        ("size", size),
        ("warmup_epochs", warmup_epochs),
        ("steps_per_epoch", steps_per_epoch),
    ):
        if not value > 0:
            raise ValueError(
                f"{name} must be positive. Received: {name}={value}. "
                "Leave the warm-up out where there is nothing to warm up."
            )
    # Count to the end of the step, so that the last step has the full rate.
    done = epoch + 1.0 / steps_per_epoch
    return (done * (size - 1) / warmup_epochs + 1.0) / size
