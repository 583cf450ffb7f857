"""Batches as they go to a worker: with what belongs to them, as one vector of bytes."""

from itertools import compress
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.parameter_server.bundles import can_be_bytes, from_bytes


class Parcel:
    """Packs structures of tensors on one side, and unpacks them on the other.

    In front are the shapes of all of them, so that they may have any number of rows.
    What cannot be bytes, such as strings, goes beside.

    Args:
        spec: A structure of specs, also of ragged and sparse tensors, and of None.
        is_packed: False if all goes beside, as large tensors had better. Default True.
    """

    def __init__(self, spec: Any, *, is_packed: bool = True) -> None:
        self._spec = spec
        self._parts = tf.nest.flatten(spec, expand_composites=True)
        self._is_packed = [is_packed and _can_be_packed(part) for part in self._parts]
        self._packed = list(compress(self._parts, self._is_packed))
        # The specs of what goes beside.
        self.beside = [
            part
            for part, is_packed in zip(self._parts, self._is_packed, strict=True)
            if part is not None and not is_packed
        ]

    def pack(self, structure: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Pack tensors that are there already.

        Args:
            structure: As the spec; arrays will do.

        Returns:
            The vector of bytes, and what goes beside it.

        Raises:
            ValueError: If a tensor has another shape than its spec.
        """
        values = tf.nest.flatten(structure, expand_composites=True)
        arrays = [
            _array(value, part)
            for value, part in zip(
                compress(values, self._is_packed), self._packed, strict=True
            )
        ]
        shapes = np.array([size for array in arrays for size in array.shape], np.int64)
        packed = np.concatenate([_bytes_of(array) for array in [shapes, *arrays]])
        beside = [
            tf.convert_to_tensor(value)
            for value, part, is_packed in zip(
                values, self._parts, self._is_packed, strict=True
            )
            if part is not None and not is_packed
        ]
        return tf.constant(packed), beside

    def unpack(self, packed: tf.Tensor, beside: list[tf.Tensor]) -> Any:
        """Unpack what was packed elsewhere.

        Args:
            packed: The vector of bytes.
            beside: What has gone beside it.

        Returns:
            The structure.
        """
        found, others = iter(self._unpacked(packed)), iter(beside)
        leaves: list[Any] = []
        for part, is_packed in zip(self._parts, self._is_packed, strict=True):
            if part is None:
                leaves.append(None)
            else:
                leaves.append(next(found if is_packed else others))
        return tf.nest.pack_sequence_as(self._spec, leaves, expand_composites=True)

    def _unpacked(self, packed: tf.Tensor) -> list[tf.Tensor]:
        """Return the tensors that are in the vector."""
        if not self._packed:
            return []
        ranks = [part.shape.rank for part in self._packed]
        head, body = packed[: 8 * sum(ranks)], packed[8 * sum(ranks) :]
        shapes = tf.split(from_bytes(head, tf.int64, [sum(ranks)]), ranks)
        sizes = [
            tf.reduce_prod(shape) * part.dtype.size
            for part, shape in zip(self._packed, shapes, strict=True)
        ]
        found = tf.split(body, tf.stack(sizes), num=len(sizes))
        leaves = []
        for part, shape, own in zip(self._packed, shapes, found, strict=True):
            leaf = from_bytes(own, part.dtype, shape)
            leaf.set_shape(part.shape)
            leaves.append(leaf)
        return leaves


def _can_be_packed(part: tf.TensorSpec | None) -> bool:
    """Say whether a tensor can go into the vector."""
    return part is not None and can_be_bytes(part.dtype) and part.shape.rank is not None


def _array(value: Any, part: tf.TensorSpec) -> np.ndarray:
    """Return a tensor as an array of the type of its spec."""
    array = np.asarray(value, part.dtype.as_numpy_dtype)
    if not part.shape.is_compatible_with(array.shape):
        raise ValueError(
            "The tensors of a batch must have the shapes that the dataset says. "
            f"Received: one of shape {array.shape} where it says {part.shape}. Let "
            "all batches be of one kind, but for the number of rows."
        )
    return array


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """Return an array as a vector of bytes."""
    return np.ravel(array).view(np.uint8)
