"""Compression of gradients: a smaller type for the time that they are in flight."""

from typing import Any

import tensorflow as tf

from tfdist.collectives.base import map_values

_TYPES = {"none": None, "fp16": tf.float16, "bf16": tf.bfloat16}
_COMPRESSED = (tf.float32, tf.float64)


class Compression:
    """Casts float32 and float64 gradients to two bytes an element, and back.

    The ranks' gradients are summed in the type in which they travel. bfloat16 has
    float32's range and needs no care. float16 ends at 65,504, and a sum may leave that
    range where no rank's gradient does:

    - *Shares.* In a step of Keras each gradient is already multiplied by its rank's
      share of the global batch, also before it is accumulated, and accumulation takes
      a mean. The shares add up to 1, so every partial sum stays within the largest
      gradient, but for rounding, which adds at most 1 part in 2,048 for each rank. No
      scaling is needed: the sum is infinite only where the gradient is beyond the range
      or within that rounding of its end.
    - *Whole gradients.* A custom loop may sum anything, so each gradient is
      divided by `safe_divisor(ranks)` before the cast, and the sum multiplied by it in
      the gradient's own type. Gradients up to 65,504 then never give an infinite sum,
      although it may itself be beyond float16. The price is at the small end, the same
      as that of shares, which are as small.

    A value beyond float16 becomes infinite, and never another finite number, so that
    loss scaling notices it. A value below 3e-8 becomes zero: scale the loss, or choose
    bfloat16, which keeps the range and fewer digits (8 bits against 11).

    Rows of `tf.IndexedSlices` are gathered, not summed: they are only cast. Other
    types, float16, bfloat16 and integers, travel as they are.

    Args:
        name: "none", "fp16" or "bf16".
        ranks: The number of ranks; one alone sends nothing, and casts nothing.

    Raises:
        ValueError: If there is no compression of that name.

    Example:
        >>> fp16 = Compression("fp16", ranks=3)
        >>> gradient = tf.constant([40000.0])
        >>> sent = fp16.compress(gradient, are_shares=False)
        >>> sent.dtype.name, sent.numpy().tolist()
        ('float16', [10000.0])
        >>> total = fp16.decompress(3 * sent, gradient, are_shares=False)
        >>> total.dtype.name, total.numpy().tolist()
        ('float32', [120000.0])
    """

    def __init__(self, name: str, ranks: int) -> None:
        check_compression(name)
        self._type = _TYPES[name] if ranks > 1 else None
        self._divisor = safe_divisor(ranks) if self._type == tf.float16 else 1

    def compress(self, gradient: Any, *, are_shares: bool) -> Any:
        """Cast a gradient to the type in which it travels.

        `are_shares` tells whether the gradients of all ranks are multiplied by shares
        that add up to 1.
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
        """Tell whether a gradient must be divided to stay in range."""
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        return self._divisor > 1 and not (are_shares or is_sparse)


def safe_divisor(ranks: int) -> int:
    """Return the smallest power of two that is not below the number of ranks.

    Floats divided by it have no sum over ranks beyond their range: a power of two
    changes no digit, and rounding cannot lift a partial sum over the end. The number of
    ranks itself is unsafe: 65504 / 3 is 21840 in float16, of which three are 65520, and
    that is infinite there. It costs less than one bit more.

    Example:
        >>> [safe_divisor(ranks) for ranks in (1, 2, 3, 4, 5, 1000)]
        [1, 2, 4, 4, 8, 1024]
    """
    return 1 << (ranks - 1).bit_length()


def check_compression(name: str) -> None:
    """Refuse a compression that does not exist."""
    if name not in _TYPES:
        raise ValueError(
            f"compression must be one of {', '.join(_TYPES)}. "
            f"Received: compression={name!r}. Use 'none' to send gradients as they are."
        )
