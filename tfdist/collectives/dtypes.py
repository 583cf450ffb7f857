"""How every number type travels through ops that know only a few."""

from typing import Any

import tensorflow as tf

_REDUCED = (tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
_MOVED = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
_SAME_BITS = {
    tf.bfloat16: tf.float16,
    tf.int16: tf.float16,
    tf.uint16: tf.float16,
    tf.uint32: tf.int32,
    tf.uint64: tf.int64,
    tf.complex64: tf.int64,
}


def to_reduce(tensor: Any, reduction: str) -> Any:
    """Turn a tensor into one that can be reduced.

    Args:
        tensor: Of any number type, or bool for "min" and "max".
        reduction: How it will be reduced.

    Returns:
        A tensor of the same shape, of a type that TensorFlow's collectives know and
        that loses no value.
    """
    dtype = tensor.dtype
    if dtype in _REDUCED:
        return tensor
    if dtype == tf.uint64:
        bits = tf.bitcast(tensor, tf.int64)
        # Unsigned order is signed order with the top bit turned over.
        ordered = reduction in ("min", "max")
        return tf.bitwise.bitwise_xor(bits, tf.int64.min) if ordered else bits
    if dtype.is_floating:
        return tf.cast(tensor, tf.float32)
    return tf.cast(tensor, tf.int64 if dtype.size == 4 else tf.int32)


def without_bfloat16(tensor: Any) -> Any:
    """Turn a tensor into one that Horovod knows, which has no bfloat16.

    Args:
        tensor: A tensor or `tf.IndexedSlices` of any type.

    Returns:
        The same; in float32, which holds every one of its values, if it was bfloat16.
    """
    return tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor


def from_reduce(tensor: Any, dtype: Any, reduction: str) -> Any:
    """Turn a reduced tensor back into its own type.

    Args:
        tensor: What the reduction of `to_reduce`'s result gave.
        dtype: The type that the tensor had before.
        reduction: How it was reduced.

    Returns:
        A tensor of the same shape and of type `dtype`.
    """
    if tensor.dtype == dtype:
        return tensor
    if dtype == tf.uint64:
        if reduction in ("min", "max"):
            tensor = tf.bitwise.bitwise_xor(tensor, tf.int64.min)
        return tf.bitcast(tensor, tf.uint64)
    return tf.cast(tensor, dtype)


def to_move(tensor: Any) -> Any:
    """Turn a tensor into one that can be gathered or broadcast, bit by bit.

    Args:
        tensor: Of any fixed-size type.

    Returns:
        A tensor of the same shape, of a type that TensorFlow's collectives know.

    Raises:
        TypeError: If the type has no fixed size.
    """
    dtype = tensor.dtype
    if dtype in _MOVED:
        return tensor
    if dtype in _SAME_BITS:
        return tf.bitcast(tensor, _SAME_BITS[dtype])
    if dtype.size == 1 and dtype.is_floating:
        # Eight bits cannot be bitcast, but are exact in sixteen.
        return tf.cast(tensor, tf.float16)
    if dtype.size == 1:
        bits = tensor if dtype.is_bool else tf.bitcast(tensor, tf.uint8)
        return tf.cast(bits, tf.int32)
    raise TypeError(
        "Only tensors of numbers can be broadcast, and of numbers or strings gathered. "
        f"Received: {dtype.name}. Turn the tensor into numbers first."
    )


def from_move(tensor: Any, dtype: Any) -> Any:
    """Turn a moved tensor back into its own type.

    Args:
        tensor: What moving `to_move`'s result gave.
        dtype: The type that the tensor had before.

    Returns:
        A tensor of the same shape and of type `dtype`.
    """
    if tensor.dtype == dtype:
        return tensor
    if dtype in _SAME_BITS:
        return tf.bitcast(tensor, dtype)
    if dtype.is_bool or dtype.is_floating:
        return tf.cast(tensor, dtype)
    return tf.bitcast(tf.cast(tensor, tf.uint8), dtype)
