"""Learning rates for large batches: the pure rules.

`tfdist.callbacks` applies them during `fit`; these functions are for programs that set
the learning rate themselves.
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
    """Return the learning rate of a larger batch.

    Args:
        learning_rate: The one that suits the batch of one process.
        rule: "linear", "sqrt" or "none"; see `scale_factor`.
        size: How many times larger the batch is. Default None: as many times as there
            are ranks, as where each of them has the batch of one process.

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
    """Return by how much a larger batch lets the learning rate grow.

    With a batch k times as large, SGD makes k times fewer steps, so each should go k
    times as far: the linear rule. The noise of a gradient falls with the square root of
    the batch, and what Adam and its like divide by is that noise: the square-root rule.

    Args:
        rule: "linear", "sqrt", or "none" for 1.
        size: How many times larger the batch is. Default None: the number of ranks.

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
        factor: What each epoch multiplies by; below 1 the rate falls.
        epoch: The epoch, from 0; a fraction within one.
        start_epoch: The epoch in which the multiplier is 1. Default 0.

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
    """Return the multiplier of a linear warm-up, from the rate of one process to all's.

    A learning rate that was scaled by the number of processes is too high for the first
    steps. So it starts near that of one process, and grows by the same amount in every
    step until the last step of the warm-up has the multiplier 1.

    Args:
        epoch: The epoch, from 0, with the part of it that is done: 2.5 after half of
            the third epoch.
        size: How many times the rate of one process is to be reached: how many
            processes there are.
        warmup_epochs: How many epochs the warm-up lasts.
        steps_per_epoch: Steps in an epoch.

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
    # Counted to the end of the step, so that the last one has the whole rate.
    done = epoch + 1.0 / steps_per_epoch
    return (done * (size - 1) / warmup_epochs + 1.0) / size
