"""What collectives have in common that move tensors of a few types only."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives.base import Collective, check_root_rank
from tfdist.collectives.checks import check_has_rows, check_reducible, to_tensor
from tfdist.collectives.dtypes import from_move, from_reduce, to_move, to_reduce
from tfdist.collectives.packing import decode_strings, encode_strings


class TypedCollective(Collective):
    """A collective that turns every type and kind of tensor into the few it moves.

    What is left to a subclass is to move tensors of one type, in `_reduce`, `_gather`
    and `_broadcast`.
    """

    def all_reduce(
        self, tensors: Sequence[Any], reduction: str = "sum", *, name: str
    ) -> list[Any]:
        """Combine tensors over all ranks; see `Collective.all_reduce`."""
        results: dict[int, Any] = {}
        dense: dict[int, Any] = {}
        for i, tensor in enumerate(map(to_tensor, tensors)):
            check_reducible(tensor, reduction)
            if isinstance(tensor, tf.IndexedSlices):
                results[i] = self._reduce_slices(tensor, reduction, f"{name}/{i}")
            else:
                dense[i] = tensor
        for group in _by_dtype(dense):
            reduced = self._reduce_group(list(group.values()), reduction, name)
            results.update(zip(group, reduced, strict=True))
        return [results[i] for i in range(len(tensors))]

    def all_gather(self, tensor: Any, *, name: str) -> Any:
        """Join the rows of all ranks; see `Collective.all_gather`."""
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
        """Give every rank the tensors of one; see `Collective.broadcast`."""
        check_root_rank(root_rank, self.size)
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        results: dict[int, Any] = {}
        for group in _by_dtype({i: to_move(t) for i, t in enumerate(tensors)}):
            received = self._broadcast(list(group.values()), root_rank, name)
            results.update(zip(group, received, strict=True))
        return [from_move(results[i], t.dtype) for i, t in enumerate(tensors)]

    @abstractmethod
    def _reduce(self, tensors: list[Any], reduction: str, name: str) -> list[Any]:
        """Combine tensors of one type of `to_reduce`; "mean" gives the sum."""

    @abstractmethod
    def _gather(self, tensor: Any, name: str) -> Any:
        """Join the rows of a tensor of a type of `to_move`."""

    @abstractmethod
    def _broadcast(self, tensors: list[Any], root_rank: int, name: str) -> list[Any]:
        """Give every rank the root's tensors, of one type of `to_move`."""

    def _reduce_group(self, tensors: list[Any], reduction: str, name: str) -> list[Any]:
        """Reduce tensors of one type."""
        dtype = tensors[0].dtype
        moved = [to_reduce(tensor, reduction) for tensor in tensors]
        reduced = self._reduce(moved, reduction, name)
        if reduction == "mean" and dtype == tf.uint64:
            # Its sum travels as bits of a signed type, which cannot be divided.
            totals = [from_reduce(total, dtype, reduction) for total in reduced]
            return [self._divide(total) for total in totals]
        if reduction == "mean":
            reduced = [self._divide(total) for total in reduced]
        return [from_reduce(tensor, dtype, reduction) for tensor in reduced]

    def _reduce_slices(self, slices: Any, reduction: str, name: str) -> Any:
        """Reduce `tf.IndexedSlices`: the sum over ranks is all rows of all ranks."""
        values = self.all_gather(slices.values, name=f"{name}/values")
        indices = self.all_gather(slices.indices, name=f"{name}/indices")
        if reduction == "mean":
            values = self._divide(values)
        return tf.IndexedSlices(values, indices, slices.dense_shape)

    def _divide(self, total: Any) -> Any:
        """Divide a sum by the number of ranks; that of integers is rounded down."""
        size = tf.constant(self.size, total.dtype)
        return total / size if total.dtype.is_floating else total // size


def _by_dtype(tensors: dict[int, Any]) -> list[dict[int, Any]]:
    """Group tensors of the same type, in the order of their first appearance."""
    groups: dict[Any, dict[int, Any]] = {}
    for i, tensor in tensors.items():
        groups.setdefault(tensor.dtype, {})[i] = tensor
    return list(groups.values())
