"""Learning rates for large batches: the pure rules.

`tfdist.callbacks` applies them during `fit`; here they are as functions, for those who
set the rate themselves.
"""

import math
from collections.abc import Callable

from tfdist.cluster.facts import size as _size
from tfdist.scaling import exponential_multiplier, warmup_multiplier

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
