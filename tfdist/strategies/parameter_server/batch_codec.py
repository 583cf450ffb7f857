"""Batches, and groups of small tensors, sent as single vectors of bytes.

Each tensor is a message of its own, which costs more than a small tensor's bytes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat.parameter_server import growing_variable

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
        leaves = tf.nest.flatten(spec, expand_composites=True)
        there = [i for i, leaf in enumerate(leaves) if leaf is not None]
        self._packed = [i for i in there if is_packed and _can_be_packed(leaves[i])]
        self._separate = [i for i in there if i not in self._packed]
        self._specs = [leaves[i] for i in self._packed]
        self.separate_specs = [leaves[i] for i in self._separate]
        self._leaves = len(leaves)

    def encode(self, structure: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the payload of tensors or arrays, and the separate tensors."""
        values = tf.nest.flatten(structure, expand_composites=True)
        arrays = [
            np.asarray(values[i], spec.dtype.as_numpy_dtype)
            for i, spec in zip(self._packed, self._specs, strict=True)
        ]
        shapes = np.array([size for array in arrays for size in array.shape], np.int64)
        payload = np.concatenate(
            [np.ravel(a).view(np.uint8) for a in (shapes, *arrays)]
        )
        separate = [tf.convert_to_tensor(values[i]) for i in self._separate]
        return tf.constant(payload), separate

    def decode(self, payload: tf.Tensor, separate: list[tf.Tensor]) -> Any:
        """Return the structure that was encoded."""
        values = [*self._decode_payload(payload), *separate]
        by_leaf = dict(zip([*self._packed, *self._separate], values, strict=True))
        leaves = [by_leaf.get(i) for i in range(self._leaves)]
        return tf.nest.pack_sequence_as(self._spec, leaves, expand_composites=True)

    def _decode_payload(self, payload: tf.Tensor) -> list[tf.Tensor]:
        if not self._specs:
            return []
        ranks = [spec.shape.rank for spec in self._specs]
        head, body = tf.split(payload, [8 * sum(ranks), -1])
        shapes = tf.split(from_bytes(head, tf.int64, [sum(ranks)]), ranks)
        sizes = [
            tf.reduce_prod(shape) * spec.dtype.size
            for spec, shape in zip(self._specs, shapes, strict=True)
        ]
        parts = tf.split(body, tf.stack(sizes), num=len(sizes))
        leaves = []
        for spec, shape, part in zip(self._specs, shapes, parts, strict=True):
            leaves.append(from_bytes(part, spec.dtype, shape))
            leaves[-1].set_shape(spec.shape)
        return leaves


def as_tensors(batch: Any) -> Any:
    """Return a batch as tensors, with None in place of Keras's empty optionals."""

    def convert(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, tf.experimental.Optional):
            return None
        is_composite = isinstance(leaf, tf.RaggedTensor | tf.SparseTensor)
        return leaf if is_composite else tf.convert_to_tensor(leaf)

    return tf.nest.map_structure(convert, batch)


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
    shapes = [getattr(leaf, "shape", None) for leaf in leaves]
    return all(shape is None or shape.rank is not None for shape in shapes)


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


class StepResults(NamedTuple):
    """The results of a step, before they are applied.

    A gradient is a tensor or `tf.IndexedSlices` for each weight or shard; a delta is
    the change of a variable that the step assigns; `logs` are the returned numbers that
    are not metric results; `version` is the number of updates that the weights had
    seen.
    """

    gradients: list[Any]
    deltas: list[tf.Tensor]
    logs: tf.Tensor
    version: tf.Tensor
    rows: tf.Tensor


class SlotLayout:
    """The arrangement of a step's results in the variables of a slot, on the servers.

    Workers assign and never add, so that repeating a step leaves the same result.
    Gradients are stored on the servers of their weights, so that an update does not
    move them; everything else is on `server_of_state`.
    """

    def __init__(
        self, weights: Sequence[Any], results: StepResults, server_of_state: str
    ) -> None:
        self._shapes = [tf.TensorShape(weight.shape) for weight in weights]
        self._is_sparse = [isinstance(g, tf.IndexedSlices) for g in results.gradients]
        self._deltas = len(results.deltas)
        devices: list[str] = []
        specs: list[tf.TensorSpec] = []
        pairs = zip(weights, self._shapes, results.gradients, strict=True)
        for weight, shape, gradient in pairs:
            parts = _specs_of_gradient(gradient, shape)
            devices += [weight._value.device] * len(parts)
            specs += parts
        rest = [*results.deltas, results.logs, results.version, results.rows]
        specs += [tf.TensorSpec(one.shape, one.dtype) for one in rest]
        self._bundles = make_bundles([*devices, *[server_of_state] * len(rest)], specs)

    @property
    def size(self) -> int:
        """The number of variables in a slot."""
        return len(self._bundles)

    def make(self) -> list[tf.Variable]:
        """Create the variables of a slot, each on its server."""
        slot = []
        for bundle in self._bundles:
            with tf.device(bundle.device):
                first = tf.zeros([0], bundle.dtype)
                slot.append(growing_variable(first, None, trainable=False))
        return slot

    def write(self, results: StepResults, slot: Sequence[tf.Tensor]) -> None:
        """Write results to a slot, given by the handles of its variables."""
        values: list[tf.Tensor] = []
        for gradient in results.gradients:
            if isinstance(gradient, tf.IndexedSlices):
                values += [gradient.values, gradient.indices]
            else:
                values.append(gradient)
        values += [*results.deltas, results.logs, results.version, results.rows]
        for handle, bundle in zip(slot, self._bundles, strict=True):
            packed = bundle.pack([values[member] for member in bundle.members])
            tf.raw_ops.AssignVariableOp(resource=handle, value=packed)

    def read(self, slot: Sequence[tf.Tensor]) -> StepResults:
        """Read results from a slot, given by the handles of its variables."""
        tensors = []
        for handle, bundle in zip(slot, self._bundles, strict=True):
            with tf.device(bundle.device):
                read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=bundle.dtype)
                tensors.append(read)
        values = iter(unpack_bundles(self._bundles, tensors))
        gradients: list[Any] = []
        for shape, is_sparse in zip(self._shapes, self._is_sparse, strict=True):
            gradient = next(values)
            if is_sparse:
                # The ids of a gradient may get other rows than there are now.
                sizes = [size or 0 for size in shape.as_list()]
                dense_shape = tf.constant(sizes, tf.int64)
                gradient = tf.IndexedSlices(gradient, next(values), dense_shape)
            gradients.append(gradient)
        deltas = [next(values) for _ in range(self._deltas)]
        return StepResults(gradients, deltas, *values)


def _specs_of_gradient(gradient: Any, shape: tf.TensorShape) -> list[tf.TensorSpec]:
    """Return the specs of the tensors of a gradient."""
    if not isinstance(gradient, tf.IndexedSlices):
        return [tf.TensorSpec(shape, gradient.dtype)]
    return [
        tf.TensorSpec([None, *shape[1:]], gradient.values.dtype),
        tf.TensorSpec([None], gradient.indices.dtype),
    ]


def _can_be_packed(spec: tf.TensorSpec) -> bool:
    """Return whether tensors of a spec can be viewed as bytes."""
    return spec.dtype in {*_PLAIN, tf.bool} and spec.shape.rank is not None


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
    return tensor.shape.num_elements() * tensor.dtype.size


def _is_small(spec: tf.TensorSpec) -> bool:
    is_known = _can_be_packed(spec) and spec.shape.is_fully_defined()
    return is_known and _size(spec) <= LARGEST_BYTES
