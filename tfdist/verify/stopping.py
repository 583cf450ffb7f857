"""How a script is ended before its own end."""

from typing import Any

import tensorflow as tf


class StopTraining(BaseException):
    """Ends the script when enough steps were seen; no `except Exception` stops it."""


class NotDistributedError(BaseException):
    """Ends a script that trains outside of every strategy of tfdist."""


def refuse_plain_training(optimizer: Any) -> None:
    """End a script that trains where tfdist has no part in it.

    Args:
        optimizer: What is applied outside of every step of a strategy.

    Raises:
        NotDistributedError: If no other strategy is at work either.
    """
    if not tf.distribute.has_strategy():
        raise NotDistributedError(
            f"the optimizer {optimizer.name!r} was applied outside of every strategy "
            "of tfdist"
        )
