"""By what the learning rate is multiplied as training goes on: pure arithmetic."""


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
    """Return the multiplier of a linear warm-up, from one process's rate to all's.

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
