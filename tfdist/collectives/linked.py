"""What collectives between processes have in common, whatever moves the tensors."""

import atexit
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import tensorflow as tf

from tfdist.cluster.hub import Hub
from tfdist.cluster.lifeline import Lifeline
from tfdist.cluster.meeting import part
from tfdist.collectives.base import Collective, check_root_rank
from tfdist.collectives.checks import check_has_rows, check_reducible, to_tensor
from tfdist.collectives.dtypes import from_move, from_reduce, to_move, to_reduce
from tfdist.collectives.packing import decode_strings, encode_strings


class LinkedCollective(Collective):
    """A collective whose ranks are tied together by lifelines.

    It turns every type and kind of tensor into the few that an engine moves, and errors
    that a peer caused into those that name it. What is left to a subclass is to move
    tensors of one type, in `_reduce`, `_gather` and `_broadcast`.

    Args:
        rank: This rank.
        size: How many ranks there are.
        lifeline: This rank's connection to rank 0.
        hub: The other end of all lifelines, on rank 0; None on the other ranks.
    """

    # What the engine raises when a peer, and not this rank, is at fault.
    _PEER_ERRORS: ClassVar[tuple[type[Exception], ...]]

    def __init__(
        self, rank: int, size: int, lifeline: Lifeline, hub: Hub | None
    ) -> None:
        self._rank, self._size = rank, size
        self._lifeline = lifeline
        atexit.register(self._leave, hub)

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        return self._rank

    @property
    def size(self) -> int:
        """How many processes take part."""
        return self._size

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

    def exchange(self, name: str, value: Any, *, joint: bool = True) -> list[Any]:
        """Give a small value and get those of all ranks; see `Collective.exchange`."""
        return self._lifeline.exchange(name, value, joint=joint)

    def barrier(self, name: str = "barrier") -> None:
        """Wait until every rank is here; see `Collective.barrier`."""
        self._lifeline.exchange(f"barrier {name}", None)

    @contextmanager
    def call(self, what: str) -> Iterator[None]:
        """Mark a stretch in which ranks may wait; see `Collective.call`."""
        self._lifeline.check()
        with self._lifeline.call(what):
            try:
                yield
            except tf.errors.OutOfRangeError:
                raise
            except tf.errors.OpError as error:
                if isinstance(error, self._PEER_ERRORS):
                    # It is felt at once that a peer has gone; which, a moment later,
                    # and only while this rank is known to be in the call.
                    self._lifeline.wait_for_failure()
                self._lifeline.check()
                # The peers are still in this call, and would wait there.
                self._lifeline.report_error(what, error)
                raise
            except Exception:
                # An engine that a peer's failure has stopped raises whatever it likes.
                self._lifeline.check()
                raise

    @abstractmethod
    def _reduce(self, tensors: list[Any], reduction: str, name: str) -> list[Any]:
        """Combine tensors of one type of `to_reduce`; "mean" gives the sum."""

    @abstractmethod
    def _gather(self, tensor: Any, name: str) -> Any:
        """Join the rows of a tensor of a type of `to_move`."""

    @abstractmethod
    def _broadcast(self, tensors: list[Any], root_rank: int, name: str) -> list[Any]:
        """Give every rank the root's tensors, of one type of `to_move`."""

    def _leave(self, hub: Hub | None) -> None:
        """Say goodbye before the interpreter goes."""
        part(self._lifeline, hub)

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
