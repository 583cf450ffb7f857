"""The learning rate of an optimizer, and the velocities that hold it."""

from typing import Any

import keras

from tfdist.callbacks.learning_rate.rates import correct_momentum


def learning_rate_variable(optimizer: Any) -> Any:
    """Return the variable of a learning rate, which can be set between steps.

    Args:
        optimizer: An optimizer of Keras.

    Raises:
        ValueError: If a schedule of Keras gives the learning rate.
    """
    rate = optimizer.learning_rate
    if not isinstance(rate, keras.Variable):
        raise ValueError(
            "The learning rate of an optimizer must be a number where a callback sets "
            f"it. Received: {type(optimizer).__name__} with a LearningRateSchedule or "
            "a function. Give the optimizer a number, or leave out the callback."
        )
    return rate


def set_learning_rate(
    optimizer: Any, learning_rate: float, momentum_correction: bool
) -> None:
    """Set the learning rate of the steps that follow.

    The velocity of SGD and of RMSprop is a sum of gradients that were multiplied by the
    learning rates of their steps. With momentum correction it is multiplied by the new
    rate over the old one, as if all of them had been made with the new one (Goyal et
    al. 2017, section 3). Horovod multiplies the momentum instead, for one step, which
    comes to the same where momentum is a variable; in Keras 3 it is a constant of the
    compiled step.

    Args:
        optimizer: An optimizer of Keras.
        learning_rate: The new one.
        momentum_correction: Whether to correct the velocity.
    """
    variable = learning_rate_variable(optimizer)
    old = float(variable.numpy())
    variable.assign(learning_rate)
    # A rate of 0 has left nothing in the velocity that could be corrected.
    if momentum_correction and old not in (0.0, learning_rate):
        correct_momentum(optimizer, learning_rate / old)
