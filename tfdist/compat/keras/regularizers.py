"""Regularizers of activities: before Keras 3.14 they add up rows, and a rank has few.

Since then Keras divides by the rows, and each rank's mean weighs as any other.
"""

from collections.abc import Callable
from typing import Any

import keras

from tfdist.compat.keras.hooks import current_hooks

_ADDS_UP = tuple(map(int, keras.__version__.split(".")[:2])) < (3, 14)


def patch() -> None:
    """Put the share of the rank into Keras's own regularizers."""
    for regularizer in (
        keras.regularizers.L1,
        keras.regularizers.L2,
        keras.regularizers.L1L2,
    ):
        regularizer.__call__ = _of_all_rows(regularizer.__call__)


def _of_all_rows(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a penalty that the share of the rank turns into that of all rows."""

    def call(self: Any, x: Any) -> Any:
        penalty = original(self, x)
        hooks = current_hooks()
        is_of_weights = isinstance(x, keras.Variable)
        if hooks is None or not hooks.in_step or is_of_weights or not _ADDS_UP:
            return penalty
        share = keras.ops.cast(hooks.share(), penalty.dtype)
        return keras.ops.divide_no_nan(penalty, share)

    return call
