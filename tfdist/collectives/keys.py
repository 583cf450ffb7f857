"""Instance keys: the numbers by which TensorFlow pairs collective ops between ranks.

Ranks may trace at different times, so a running counter would pair the wrong ops. A key
is computed from what the op is instead: its name, kind, type and number of elements.
"""

import hashlib
from typing import Any

import tensorflow as tf

_MASK = 0x7FFFFFFF
# The golden ratio of 32 bits spreads neighbouring sizes over all keys (Knuth, The Art
# of Computer Programming, volume 3, section 6.4).
_SPREAD = 0x9E3779B1


class Keys:
    """Gives each op its key, and notices when two would share one."""

    def __init__(self) -> None:
        self._owners: dict[int, str] = {}

    def base(self, description: str) -> int:
        """Return the number of an op of any size.

        Args:
            description: What the op is, the same on every rank.

        Returns:
            A number from 0 to 2**31 - 1.

        Raises:
            RuntimeError: If another op of this process has the same number.
        """
        digest = hashlib.blake2b(description.encode(), digest_size=4).digest()
        base = int.from_bytes(digest, "big") & _MASK
        owner = self._owners.setdefault(base, description)
        if owner != description:
            raise RuntimeError(
                f"Two collectives have the same key. Received: {owner!r} and "
                f"{description!r}. Give one of them another name."
            )
        return base


def with_elements(base: int, elements: int) -> int:
    """Mix the number of elements into a key: TensorFlow binds a key to one shape.

    Args:
        base: What `Keys.base` returned.
        elements: The number of elements.

    Returns:
        The key, from 0 to 2**31 - 1.
    """
    return (base ^ (elements * _SPREAD)) & _MASK


def with_elements_of(base: int, tensor: Any) -> Any:
    """Do the same for a tensor whose size is known only when the graph runs.

    Args:
        base: What `Keys.base` returned.
        tensor: The tensor.

    Returns:
        The key, a scalar int32 tensor.
    """
    spread = tf.size(tensor, tf.int64) * tf.constant(_SPREAD, tf.int64)
    mixed = tf.bitwise.bitwise_xor(tf.constant(base, tf.int64), spread)
    mask = tf.constant(_MASK, tf.int64)
    return tf.cast(tf.bitwise.bitwise_and(mixed, mask), tf.int32)
