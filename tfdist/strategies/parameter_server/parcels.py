"""Batches as they go to a worker: with what belongs to them, as one vector of bytes."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.parameter_server.bundles import can_be_bytes, from_bytes


class Parcel:
    """Packs structures of tensors on one side, and unpacks them on the other.

    In front are the shapes of all of them, so that they may have any number of rows.
    What cannot be bytes, such as strings, goes beside.

    Args:
        spec: A structure of specs, also of ragged and sparse tensors, and of None; one
            at least is of numbers.
    """

    def __init__(self, spec: Any) -> None:
        self._spec = spec
        self._parts = tf.nest.flatten(spec, expand_composites=True)
        self._packed = [part for part in self._parts if _is_packed(part)]
        # The specs of what goes beside.
        self.beside = [part for part in self._parts if _is_beside(part)]

    def pack(self, structure: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Pack tensors that are there already.

        Args:
            structure: As the spec; arrays will do.

        Returns:
            The vector of bytes, and what goes beside it.
        """
        values = tf.nest.flatten(structure, expand_composites=True)
        pairs = list(zip(self._parts, values, strict=True))
        arrays = [np.asarray(value) for part, value in pairs if _is_packed(part)]
        shapes = np.array([size for array in arrays for size in array.shape], np.int64)
        packed = np.concatenate([_bytes_of(array) for array in [shapes, *arrays]])
        return tf.constant(packed), [value for part, value in pairs if _is_beside(part)]

    def unpack(self, packed: tf.Tensor, beside: list[tf.Tensor]) -> Any:
        """Unpack what was packed elsewhere.

        Args:
            packed: The vector of bytes.
            beside: What has gone beside it.

        Returns:
            The structure.
        """
        ranks = [part.shape.rank for part in self._packed]
        head, body = packed[: 8 * sum(ranks)], packed[8 * sum(ranks) :]
        dimensions = tf.split(from_bytes(head, tf.int64, [sum(ranks)]), ranks)
        sizes = [
            tf.reduce_prod(shape) * part.dtype.size
            for part, shape in zip(self._packed, dimensions, strict=True)
        ]
        found = iter(tf.split(body, tf.stack(sizes), num=len(sizes)))
        shapes, others = iter(dimensions), iter(beside)
        leaves: list[Any] = []
        for part in self._parts:
            if _is_packed(part):
                leaf = from_bytes(next(found), part.dtype, next(shapes))
                leaf.set_shape(part.shape)
                leaves.append(leaf)
            else:
                leaves.append(next(others) if _is_beside(part) else None)
        return tf.nest.pack_sequence_as(self._spec, leaves, expand_composites=True)


def _is_packed(part: tf.TensorSpec | None) -> bool:
    """Say whether a tensor goes into the vector."""
    return part is not None and can_be_bytes(part.dtype) and part.shape.rank is not None


def _is_beside(part: tf.TensorSpec | None) -> bool:
    """Say whether a tensor goes beside the vector."""
    return part is not None and not _is_packed(part)


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """Return an array as a vector of bytes."""
    return np.ravel(array).view(np.uint8)
