"""Codecs that send batches, and groups of small tensors, as single vectors of bytes.

Each tensor is a message of its own, which costs more than a small tensor's bytes.
"""

from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdist.data.sharding import rows_of

# For larger tensors the two copies would take longer than the message.
LARGEST_BYTES = 2**20

# The types that tf.bitcast supports; bool is cast.
_PLAIN = {
    tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.complex64, tf.complex128,
    tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64,
}  # fmt: skip


class BatchCodec:
    """A codec for a structure of tensors with any number of rows.

    The payload begins with the shapes. Types without a byte view, such as strings, are
    sent separately; so are all tensors unless `is_packed`, which is better for large
    ones.
    """

    def __init__(self, spec: Any, *, is_packed: bool = True) -> None:
        self._spec = spec
        self._leaves = tf.nest.flatten(spec, expand_composites=True)
        self._is_packed = [
            is_packed
            and leaf is not None
            and can_be_bytes(leaf.dtype)
            and leaf.shape.rank is not None
            for leaf in self._leaves
        ]
        self._is_separate = [
            leaf is not None and not packed
            for leaf, packed in zip(self._leaves, self._is_packed, strict=True)
        ]
        self._packed = list(compress(self._leaves, self._is_packed))
        self.separate_specs = list(compress(self._leaves, self._is_separate))

    def encode(self, structure: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the payload of tensors or arrays, and the separate tensors."""
        values = tf.nest.flatten(structure, expand_composites=True)
        pairs = zip(compress(values, self._is_packed), self._packed, strict=True)
        arrays = [_array(value, spec) for value, spec in pairs]
        shapes = np.array([size for array in arrays for size in array.shape], np.int64)
        payload = np.concatenate(
            [np.ravel(a).view(np.uint8) for a in (shapes, *arrays)]
        )
        separate = map(tf.convert_to_tensor, compress(values, self._is_separate))
        return tf.constant(payload), list(separate)

    def decode(self, payload: tf.Tensor, separate: list[tf.Tensor]) -> Any:
        """Return the structure that was encoded."""
        packed, others = iter(self._decode_payload(payload)), iter(separate)
        leaves = [
            next(packed) if is_packed else next(others) if is_separate else None
            for is_packed, is_separate in zip(
                self._is_packed, self._is_separate, strict=True
            )
        ]
        return tf.nest.pack_sequence_as(self._spec, leaves, expand_composites=True)

    def _decode_payload(self, payload: tf.Tensor) -> list[tf.Tensor]:
        if not self._packed:
            return []
        ranks = [spec.shape.rank for spec in self._packed]
        head, body = payload[: 8 * sum(ranks)], payload[8 * sum(ranks) :]
        shapes = tf.split(from_bytes(head, tf.int64, [sum(ranks)]), ranks)
        sizes = [
            tf.reduce_prod(shape) * spec.dtype.size
            for spec, shape in zip(self._packed, shapes, strict=True)
        ]
        parts = tf.split(body, tf.stack(sizes), num=len(sizes))
        leaves = []
        for spec, shape, part in zip(self._packed, shapes, parts, strict=True):
            leaves.append(from_bytes(part, spec.dtype, shape))
            leaves[-1].set_shape(spec.shape)
        return leaves


def _array(value: Any, spec: tf.TensorSpec) -> np.ndarray:
    """Return a tensor as an array with the type of its spec."""
    array = np.asarray(value, spec.dtype.as_numpy_dtype)
    if not spec.shape.is_compatible_with(array.shape):
        raise ValueError(
            "The tensors of a batch must have the shapes that the dataset says. "
            f"Received: one of shape {array.shape} where it says {spec.shape}. Let "
            "all batches be of one kind, but for the number of rows."
        )
    return array


def as_tensors(batch: Any) -> Any:
    """Return a batch as tensors, with None in place of Keras's empty optionals."""

    def convert(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, tf.experimental.Optional):
            return None
        is_composite = isinstance(leaf, tf.RaggedTensor | tf.SparseTensor)
        return leaf if is_composite else tf.convert_to_tensor(leaf)

    return tf.nest.map_structure(convert, batch)


def count_rows(batch: Any) -> int:
    """Return the number of rows in a batch of tensors."""
    for leaf in tf.nest.flatten(batch):
        # A static shape is much faster than an operation.
        if isinstance(leaf, tf.Tensor) and leaf.shape.rank:
            return int(leaf.shape[0])
    return int(rows_of(batch))


def are_small(batches: Any) -> bool:
    """Return whether every tensor in batches is small enough for a payload."""
    leaves = tf.nest.flatten(batches, expand_composites=True)
    return all(leaf is None or _size(leaf) <= LARGEST_BYTES for leaf in leaves)


def without_missing(batch: Any) -> Any:
    """Return a batch, or its spec, without a missing y and sample_weight."""
    return keras.utils.pack_x_y_sample_weight(
        *keras.utils.unpack_x_y_sample_weight(batch)
    )


def has_known_ranks(spec: Any) -> bool:
    """Return whether the rank of each tensor in a spec is known."""
    leaves = tf.nest.flatten(spec)
    return all(_is_missing(leaf) or leaf.shape.rank is not None for leaf in leaves)


def spec_of(batch: Any) -> Any:
    """Return the spec of a batch, or of a spec, for any number of rows.

    Batches differ only in their rows if `str` of their specs is equal.
    """
    return tf.nest.map_structure(_of_any_rows, batch)


def _is_missing(leaf: Any) -> bool:
    """Return whether a leaf or its spec stands for None."""
    return getattr(leaf, "shape", None) is None


def _of_any_rows(leaf: Any) -> Any:
    if _is_missing(leaf):
        return None
    spec = leaf if isinstance(leaf, tf.TypeSpec) else tf.type_spec_from_value(leaf)
    if isinstance(spec, tf.RaggedTensorSpec):
        shape = [None, *spec.shape[1:]]
        return tf.RaggedTensorSpec(
            shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype
        )
    if isinstance(spec, tf.SparseTensorSpec) or spec.shape.rank:
        return type(spec)([None, *spec.shape[1:]], spec.dtype)
    return spec


class Bundle(NamedTuple):
    """Tensors on one device that are sent as one: their indices and specs."""

    device: str
    members: tuple[int, ...]
    specs: tuple[tf.TensorSpec, ...]

    @property
    def dtype(self) -> tf.DType:
        """The type of the packed tensor: bytes, unless there is a single member."""
        return self.specs[0].dtype if len(self.specs) == 1 else tf.uint8

    def pack(self, values: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the members as one tensor."""
        if len(self.specs) == 1:
            return values[0]
        return tf.concat([as_bytes(value) for value in values], 0)

    def unpack(self, packed: tf.Tensor) -> list[tf.Tensor]:
        """Return the members of a packed tensor."""
        if len(self.specs) == 1:
            packed.set_shape(self.specs[0].shape)
            return [packed]
        sizes = [_size(spec) for spec in self.specs]
        packed.set_shape([sum(sizes)])
        return [
            from_bytes(part, spec.dtype, spec.shape)
            for part, spec in zip(tf.split(packed, sizes), self.specs, strict=True)
        ]


def make_bundles(
    devices: Sequence[str], specs: Sequence[tf.TensorSpec]
) -> list[Bundle]:
    """Group tensors, given by their devices and specs, so that small ones share."""
    groups: dict[Any, list[int]] = {}
    for member, (device, spec) in enumerate(zip(devices, specs, strict=True)):
        groups.setdefault(device if _is_small(spec) else member, []).append(member)
    return [
        Bundle(devices[members[0]], tuple(members), tuple(specs[i] for i in members))
        for members in groups.values()
    ]


def unpack_bundles(
    bundles: Sequence[Bundle], tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Return the members of all bundles in their original order."""
    values = {
        member: value
        for bundle, tensor in zip(bundles, tensors, strict=True)
        for member, value in zip(bundle.members, bundle.unpack(tensor), strict=True)
    }
    return [values[member] for member in sorted(values)]


def can_be_bytes(dtype: tf.DType) -> bool:
    """Return whether tensors of a type can be viewed as bytes."""
    return dtype in _PLAIN or dtype == tf.bool


def as_bytes(value: tf.Tensor) -> tf.Tensor:
    """Return a tensor as a vector of bytes."""
    if value.dtype == tf.bool:
        value = tf.cast(value, tf.uint8)
    return tf.reshape(tf.bitcast(value, tf.uint8), [-1])


def from_bytes(packed: tf.Tensor, dtype: tf.DType, shape: Any) -> tf.Tensor:
    """Return the tensor that `as_bytes` has made a vector of."""
    plain = tf.uint8 if dtype == tf.bool else dtype
    if plain.size > 1:
        packed = tf.reshape(packed, [-1, plain.size])
    value = tf.reshape(tf.bitcast(packed, plain), shape)
    return tf.cast(value, tf.bool) if dtype == tf.bool else value


def _size(tensor: Any) -> int:
    """Return the bytes of a tensor, or of one with a spec."""
    return int(tensor.shape.num_elements()) * int(tensor.dtype.size)


def _is_small(spec: tf.TensorSpec) -> bool:
    is_known = can_be_bytes(spec.dtype) and spec.shape.is_fully_defined()
    return is_known and _size(spec) <= LARGEST_BYTES
