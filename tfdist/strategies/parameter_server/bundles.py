"""Tensors that travel together: a message costs far more than the bytes of a small one.

Every tensor that one process has and another needs is a message of its own, with a
call, an answer and a copy. So the small ones that lie on one server go as one vector of
bytes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

# Larger ones go alone: the two copies would take longer than the message.
LARGEST_BYTES = 2**20

# What TensorFlow can take as bytes; bool has to be cast.
_PLAIN = {
    tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.complex64, tf.complex128,
    tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64,
}  # fmt: skip


class Bundle(NamedTuple):
    """Tensors of one server that travel as one.

    Args:
        device: Where they are, or are to be.
        members: Their numbers among all.
        specs: Their specs, in the same order.
    """

    device: str
    members: tuple[int, ...]
    specs: tuple[tf.TensorSpec, ...]

    @property
    def dtype(self) -> tf.DType:
        """The type of what travels: bytes, or that of a single one."""
        return self.specs[0].dtype if len(self.specs) == 1 else tf.uint8

    def pack(self, values: Sequence[tf.Tensor]) -> tf.Tensor:
        """Make one tensor of its members.

        Args:
            values: The members, in their order.
        """
        if len(self.specs) == 1:
            return values[0]
        return tf.concat([as_bytes(value) for value in values], 0)

    def unpack(self, packed: tf.Tensor) -> list[tf.Tensor]:
        """Return the members of which `pack` has made a tensor."""
        if len(self.specs) == 1:
            packed.set_shape(self.specs[0].shape)
            return [packed]
        sizes = [_size(spec) for spec in self.specs]
        packed.set_shape([sum(sizes)])
        return [
            from_bytes(part, spec.dtype, spec.shape)
            for part, spec in zip(tf.split(packed, sizes), self.specs, strict=True)
        ]


def bundled(devices: Sequence[str], specs: Sequence[tf.TensorSpec]) -> list[Bundle]:
    """Group tensors into as few bundles as is worth it.

    Args:
        devices: Where each tensor is, or is to be.
        specs: The spec of each.

    Returns:
        Bundles that have each of them once.
    """
    groups: dict[Any, list[int]] = {}
    for member, (device, spec) in enumerate(zip(devices, specs, strict=True)):
        # One that travels alone is a group by itself.
        group = device if _is_small(spec) else member
        groups.setdefault(group, []).append(member)
    return [
        Bundle(
            devices[members[0]], tuple(members), tuple(specs[one] for one in members)
        )
        for members in groups.values()
    ]


def unpacked(
    bundles: Sequence[Bundle], tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Return what bundles were made of, in the order of `bundled`.

    Args:
        bundles: All bundles.
        tensors: What `pack` has made of each.
    """
    values = {
        member: value
        for bundle, tensor in zip(bundles, tensors, strict=True)
        for member, value in zip(bundle.members, bundle.unpack(tensor), strict=True)
    }
    return [values[member] for member in sorted(values)]


def can_be_bytes(dtype: tf.DType) -> bool:
    """Say whether tensors of a type can be taken as bytes."""
    return dtype in _PLAIN or dtype == tf.bool


def as_bytes(value: tf.Tensor) -> tf.Tensor:
    """Return a tensor as a vector of bytes."""
    if value.dtype == tf.bool:
        value = tf.cast(value, tf.uint8)
    return tf.reshape(tf.bitcast(value, tf.uint8), [-1])


def from_bytes(packed: tf.Tensor, dtype: tf.DType, shape: Any) -> tf.Tensor:
    """Return the tensor of which `as_bytes` has made a vector.

    Args:
        packed: The vector.
        dtype: The type of the tensor.
        shape: Its shape, a `tf.TensorShape` or a tensor.
    """
    plain = tf.uint8 if dtype == tf.bool else dtype
    if plain.size > 1:
        packed = tf.reshape(packed, [-1, plain.size])
    value = tf.reshape(tf.bitcast(packed, plain), shape)
    return tf.cast(value, tf.bool) if dtype == tf.bool else value


def _size(spec: tf.TensorSpec) -> int:
    """Return of how many bytes a tensor is."""
    count: int = spec.shape.num_elements()
    return count * int(spec.dtype.size)


def _is_small(spec: tf.TensorSpec) -> bool:
    """Say whether a tensor is better sent with others."""
    is_known = can_be_bytes(spec.dtype) and spec.shape.is_fully_defined()
    return is_known and _size(spec) <= LARGEST_BYTES
