"""Compression of gradients: a smaller type while they are in flight."""

from typing import Any

import tensorflow as tf

from tfdist.collectives.base import map_values

_TYPES = {"none": None, "fp16": tf.float16, "bf16": tf.bfloat16}
_COMPRESSED = (tf.float32, tf.float64)
# The columns of each factor of a matrix, see `PowerSGDReducer`.
POWERSGD_RANKS = {"powersgd-1": 1, "powersgd": 2, "powersgd-4": 4}


class Compression:
    """A cast of float32 and float64 gradients to two bytes per element, and back.

    Sums are computed in the small type. bfloat16 has float32's range. float16 ends at
    65,504, which a sum over ranks may exceed although no gradient does. Gradients that
    are multiplied by shares of the global batch are safe, up to rounding, because the
    shares add up to 1. Others, as of a custom loop, are divided by `safe_divisor`
    before the cast, and their sum is multiplied by it.

    Values beyond float16 become infinite, so loss scaling notices them; values below
    3e-8 become zero. Rows of `tf.IndexedSlices` are gathered, not summed, and so only
    cast. Other types are sent unchanged.
    """

    def __init__(self, name: str, ranks: int) -> None:
        self._type = _TYPES[name] if ranks > 1 else None
        self._divisor = safe_divisor(ranks) if self._type == tf.float16 else 1

    def compress(self, gradient: Any, *, are_shares: bool) -> Any:
        """Cast a gradient to the type in which it is sent.

        `are_shares` tells that all ranks' gradients are multiplied by shares of the
        batch.
        """
        if self._type is None or gradient is None or gradient.dtype not in _COMPRESSED:
            return gradient
        if self._is_divided(gradient, are_shares):
            gradient = gradient / self._divisor
        return map_values(lambda values: tf.cast(values, self._type), gradient)

    def decompress(self, total: Any, like: Any, *, are_shares: bool) -> Any:
        """Cast a sum of compressed gradients back to the type of `like`."""
        if total is None or total.dtype == like.dtype:
            return total
        total = map_values(lambda values: tf.cast(values, like.dtype), total)
        return total * self._divisor if self._is_divided(total, are_shares) else total

    def _is_divided(self, gradient: Any, are_shares: bool) -> bool:
        """Return whether a gradient must be divided to stay in range."""
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        return self._divisor > 1 and not (are_shares or is_sparse)


def safe_divisor(ranks: int) -> int:
    """Return the smallest power of two that is not below the number of ranks."""
    # A power of two is exact. The number of ranks is unsafe: in float16, 65504 / 3 is
    # 21840, and three of these are 65520, which is infinite.
    return 1 << (ranks - 1).bit_length()


def check_compression(name: str) -> None:
    """Raise `ValueError` for an unknown compression."""
    names = [*_TYPES, *POWERSGD_RANKS]
    if name not in names:
        raise ValueError(
            f"compression must be one of {', '.join(names)}. "
            f"Received: compression={name!r}. Use 'none' to send gradients as they are."
        )
