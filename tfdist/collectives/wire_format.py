"""The form in which tensors are sent: few types, flat, strings as bytes."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives.base import (
    Collective,
    check_has_rows,
    check_reducible,
    check_root_rank,
    map_values,
    to_tensor,
)
from tfdist.compat.tensorflow import run_independently

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


class TypedCollective(Collective):
    """A collective that converts tensors to the few types that an engine can send.

    Subclasses send tensors of one type, in `_reduce`, `_gather` and `_broadcast`.
    """

    def all_reduce(
        self, tensors: Sequence[Any], reduction: str = "sum", *, name: str
    ) -> list[Any]:
        """Combine tensors over all ranks; see `Collective.all_reduce`."""
        results = dict(enumerate(map(to_tensor, tensors)))
        for tensor in results.values():
            check_reducible(tensor, reduction)
        for group in by_dtype(results):
            alike = [results[i] for i in group]
            if isinstance(alike[0], tf.IndexedSlices):
                gathered_as = f"{name}/{group[0]}"
                reduced = [self._reduce_slices(alike[0], reduction, gathered_as)]
            else:
                reduced = self._reduce_group(alike, reduction, name)
            results.update(zip(group, reduced, strict=True))
        return list(results.values())

    def all_gather(self, tensor: Any, *, name: str) -> Any:
        """Concatenate the rows of all ranks; see `Collective.all_gather`."""
        tensor = tf.convert_to_tensor(tensor)
        check_has_rows(tensor, name)
        if tensor.dtype == tf.string:
            lengths, data = encode_strings(tensor)
            lengths = self.all_gather(lengths, name=f"{name}/lengths")
            return decode_strings(lengths, self.all_gather(data, name=f"{name}/bytes"))
        gathered = from_move(self._gather(to_move(tensor), name), tensor.dtype)
        return tf.ensure_shape(gathered, [None, *tensor.shape[1:]])

    def broadcast(
        self, tensors: Sequence[Any], root_rank: int = 0, *, name: str
    ) -> list[Any]:
        """Send the tensors of one rank to all; see `Collective.broadcast`."""
        check_root_rank(root_rank, self.size)
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        moved = {i: to_move(tensor) for i, tensor in enumerate(tensors)}
        for group in by_dtype(moved):
            received = self._broadcast([moved[i] for i in group], root_rank, name)
            moved.update(zip(group, received, strict=True))
        return [from_move(moved[i], t.dtype) for i, t in enumerate(tensors)]

    @abstractmethod
    def _reduce(self, tensors: list[Any], reduction: str, name: str) -> list[Any]:
        """Combine tensors of one type of `to_reduce`; "mean" gives the sum."""

    @abstractmethod
    def _gather(self, tensor: Any, name: str) -> Any:
        """Concatenate the rows of a tensor of a type of `to_move`."""

    @abstractmethod
    def _broadcast(self, tensors: list[Any], root_rank: int, name: str) -> list[Any]:
        """Send the root's tensors, of one type of `to_move`, to every rank."""

    def _reduce_group(self, tensors: list[Any], reduction: str, name: str) -> list[Any]:
        """Reduce tensors of one type."""
        dtype = tensors[0].dtype
        moved = [to_reduce(tensor, reduction) for tensor in tensors]
        reduced = self._reduce(moved, reduction, name)
        if reduction == "mean" and dtype == tf.uint64:
            # Its sum is sent as bits of a signed type, which cannot be divided.
            totals = [from_reduce(total, dtype, reduction) for total in reduced]
            return [self._divide(total) for total in totals]
        if reduction == "mean":
            reduced = [self._divide(total) for total in reduced]
        return [from_reduce(tensor, dtype, reduction) for tensor in reduced]

    def _reduce_slices(self, slices: Any, reduction: str, name: str) -> Any:
        """Reduce `tf.IndexedSlices`: their sum consists of the rows of all ranks."""
        values = self.all_gather(slices.values, name=f"{name}/values")
        indices = self.all_gather(slices.indices, name=f"{name}/indices")
        total = tf.IndexedSlices(values, indices, slices.dense_shape)
        return self._divide(total) if reduction == "mean" else total

    def _divide(self, total: Any) -> Any:
        """Divide a sum by the number of ranks; integers are rounded down."""

        def divide(total: Any) -> Any:
            size = tf.constant(self.size, total.dtype)
            return total / size if total.dtype.is_floating else total // size

        return map_values(divide, total)


def by_dtype(tensors: dict[int, Any]) -> list[list[int]]:
    """Group the keys of dense tensors by type; each `tf.IndexedSlices` is alone."""
    groups: dict[Any, list[int]] = {}
    for i, tensor in tensors.items():
        is_sparse = isinstance(tensor, tf.IndexedSlices)
        # A number alone would be equal to a type: tf.float32 == 1.
        groups.setdefault((i, i) if is_sparse else tensor.dtype, []).append(i)
    return list(groups.values())


def to_reduce(tensor: Any, reduction: str) -> Any:
    """Convert a tensor, without loss, to a type that TensorFlow's ops can reduce."""
    dtype = tensor.dtype
    if dtype in _REDUCED:
        return tensor
    if dtype == tf.uint64:
        bits = tf.bitcast(tensor, tf.int64)
        # Unsigned order is signed order with the top bit flipped.
        ordered = reduction in ("min", "max")
        return tf.bitwise.bitwise_xor(bits, tf.int64.min) if ordered else bits
    if dtype.is_floating:
        return tf.cast(tensor, tf.float32)
    return tf.cast(tensor, tf.int64 if dtype.size == 4 else tf.int32)


def from_reduce(tensor: Any, dtype: Any, reduction: str) -> Any:
    """Convert a result of `to_reduce` back to the original type."""
    if tensor.dtype == dtype:
        return tensor
    if dtype == tf.uint64:
        if reduction in ("min", "max"):
            tensor = tf.bitwise.bitwise_xor(tensor, tf.int64.min)
        return tf.bitcast(tensor, tf.uint64)
    return tf.cast(tensor, dtype)


def without_bfloat16(tensor: Any) -> Any:
    """Convert bfloat16, which Horovod cannot send, to float32."""
    return tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor


def to_move(tensor: Any) -> Any:
    """Convert a tensor to a type that can be gathered or broadcast bit by bit."""
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
    """Convert a result of `to_move` back to the original type."""
    if tensor.dtype == dtype:
        return tensor
    if dtype in _SAME_BITS:
        return tf.bitcast(tensor, dtype)
    if dtype.is_bool or dtype.is_floating:
        return tf.cast(tensor, dtype)
    return tf.bitcast(tf.cast(tensor, tf.uint8), dtype)


def pack(tensors: Sequence[Any]) -> Any:
    """Concatenate tensors of one type into one of shape (elements,)."""
    flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
    return flat[0] if len(flat) == 1 else tf.concat(flat, 0)


def unpack(flat: Any, like: Sequence[Any]) -> list[Any]:
    """Split the result of `pack` into tensors of the shapes of `like`."""

    def elements(tensor: Any) -> Any:
        known = tensor.shape.num_elements()
        return tf.size(tensor) if known is None else known

    def shape(tensor: Any) -> Any:
        is_known = tensor.shape.is_fully_defined()
        return tensor.shape if is_known else tf.shape(tensor)

    parts = [flat] if len(like) == 1 else tf.split(flat, [elements(t) for t in like])
    return [tf.reshape(part, shape(t)) for part, t in zip(parts, like, strict=True)]


def plan_pieces(
    sizes: Sequence[int], owners: Sequence[int], ranks: int, most: int
) -> list[list[list[tuple[int, slice]]]]:
    """Cut tensors so that a message has at most so many elements for each rank.

    Returns the messages: of each, by rank, positions of tensors and their elements.
    """
    messages: list[list[list[tuple[int, slice]]]] = []
    for rank in range(ranks):
        number, room = 0, most
        for i in (i for i, owner in enumerate(owners) if owner == rank):
            start = 0
            while start < sizes[i]:
                if number == len(messages):
                    messages.append([[] for _ in range(ranks)])
                piece = slice(start, min(sizes[i], start + room))
                messages[number][rank].append((i, piece))
                room -= piece.stop - start
                start = piece.stop
                if not room:
                    number, room = number + 1, most
    return messages


def padded_rows(rows: Any) -> Any:
    """Round a number of rows up to one of eight steps per octave, by at most 1/8."""
    # TensorFlow negotiates once for each size, so there should be few sizes.
    octave = tf.math.floor(tf.experimental.numpy.log2(tf.cast(rows, tf.float64)))
    step = tf.maximum(1, tf.cast(2.0 ** (octave - 3.0), tf.int32))
    return (rows + step - 1) // step * step


def encode_strings(strings: Any) -> tuple[Any, Any]:
    """Convert strings to their lengths, of the same shape, and all their bytes."""
    joined = tf.strings.reduce_join(tf.reshape(strings, [-1]))
    return tf.strings.length(strings), tf.io.decode_raw(joined, tf.uint8)


def decode_strings(lengths: Any, data: Any) -> Any:
    """Convert the results of `encode_strings` back to strings."""
    characters = tf.constant([bytes([i]) for i in range(256)])
    ragged = tf.RaggedTensor.from_row_lengths(
        tf.gather(characters, tf.cast(data, tf.int32)), tf.reshape(lengths, [-1])
    )
    return tf.reshape(tf.strings.reduce_join(ragged, axis=1), tf.shape(lengths))


def prevent_constant_folding(tensor: Any) -> Any:
    """Return a graph tensor that TensorFlow does not evaluate while tracing."""
    # Horovod's ops are declared free of side effects, so TensorFlow would fold ops on
    # constants while tracing, and a rank that traces again would wait for the others.
    # This op is declared to have side effects; with no URL it only returns its input.
    tensor = tf.raw_ops.DebugIdentityV2(input=tensor, debug_urls=[])
    run_independently(tensor.op)
    return tensor
