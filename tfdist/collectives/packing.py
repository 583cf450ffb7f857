"""Tensors of any shape as flat ones, and strings as numbers, and back."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def pack(tensors: Sequence[Any]) -> Any:
    """Join tensors of one type into one of shape (elements,).

    Args:
        tensors: At least one tensor.

    Returns:
        Their elements, one tensor's after the other's.
    """
    flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
    return flat[0] if len(flat) == 1 else tf.concat(flat, 0)


def unpack(flat: Any, like: Sequence[Any]) -> list[Any]:
    """Cut what `pack` joined.

    Args:
        flat: Of shape (elements,).
        like: The tensors that were joined, whose shapes come back.

    Returns:
        A tensor for each of `like`.
    """
    parts = [flat] if len(like) == 1 else tf.split(flat, [_elements(t) for t in like])
    return [tf.reshape(part, _shape(t)) for part, t in zip(parts, like, strict=True)]


def padded_rows(rows: Any) -> Any:
    """Round a number of rows up to one of eight steps an octave.

    TensorFlow negotiates once for every size that it meets, so there should be few.

    Args:
        rows: A scalar int32 tensor.

    Returns:
        A scalar int32 tensor, at most an eighth more.
    """
    octave = tf.math.floor(tf.experimental.numpy.log2(tf.cast(rows, tf.float64)))
    step = tf.maximum(1, tf.cast(2.0 ** (octave - 3.0), tf.int32))
    return (rows + step - 1) // step * step


def encode_strings(strings: Any) -> tuple[Any, Any]:
    """Turn strings into numbers.

    Args:
        strings: A string tensor of any shape.

    Returns:
        The lengths in bytes, int32 of the same shape, and the bytes, uint8 of shape
        (bytes of all,).
    """
    joined = tf.strings.reduce_join(tf.reshape(strings, [-1]))
    return tf.strings.length(strings), tf.io.decode_raw(joined, tf.uint8)


def decode_strings(lengths: Any, data: Any) -> Any:
    """Turn the numbers of `encode_strings` back into strings.

    Args:
        lengths: Lengths in bytes, int32 of any shape.
        data: The bytes, uint8 of shape (bytes of all,).

    Returns:
        A string tensor of the shape of `lengths`.
    """
    characters = tf.constant([bytes([i]) for i in range(256)])
    ragged = tf.RaggedTensor.from_row_lengths(
        tf.gather(characters, tf.cast(data, tf.int32)), tf.reshape(lengths, [-1])
    )
    return tf.reshape(tf.strings.reduce_join(ragged, axis=1), tf.shape(lengths))


def _elements(tensor: Any) -> Any:
    """Return the number of elements, as an integer if it is known."""
    known = tensor.shape.num_elements()
    return tf.size(tensor) if known is None else known


def _shape(tensor: Any) -> Any:
    """Return the shape, as a constant if it is known."""
    return tensor.shape if tensor.shape.is_fully_defined() else tf.shape(tensor)
