"""TensorFlow's own collective ops: a ring over gRPC, NCCL where there are GPUs."""

import atexit
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfdist.cluster.hub import Hub
from tfdist.cluster.model import Cluster
from tfdist.cluster.roll_call import (
    START_TIMEOUT_SECONDS,
    TIMEOUT_SECONDS,
    call_roll,
)
from tfdist.collectives.base import Collective, check_root_rank
from tfdist.collectives.checks import check_has_rows, check_reducible, to_tensor
from tfdist.collectives.devices import use_own_gpu
from tfdist.collectives.dtypes import from_move, from_reduce, to_move, to_reduce
from tfdist.collectives.ops import FlatOps
from tfdist.collectives.packing import (
    decode_strings,
    encode_strings,
    pack,
    padded_rows,
    unpack,
)
from tfdist.compat import tensorflow as compat

# How long a rank that ends waits for those that have more to do.
_FAREWELL_SECONDS = 1.0
# What a collective raises when a peer, and not this rank, is at fault.
_PEER_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)


class TensorFlowCollective(Collective):
    """Connects the processes of a cluster through TensorFlow itself.

    Nothing else need be installed. It must be made before TensorFlow runs its first
    operation, because TensorFlow takes up other processes only while it starts. Where
    a host has several GPUs, the process keeps to the one of its local rank.

    Args:
        cluster: Who takes part; this process must be one of those that train.
        start_timeout_seconds: How long to wait for the last process to come.
            Default 300.
        timeout_seconds: How long a rank may wait for the others in one call; longer
            than any work that one rank does alone. Default 600.

    Raises:
        OSError: If this process cannot listen at its own address.
        RuntimeError: If TensorFlow has already run an operation, or if processes
            have the same task or different clusters.
        TimeoutError: If a process is missing when the time is over.
        ValueError: If there are several GPUs on a host, and fewer than processes.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        start_timeout_seconds: float = START_TIMEOUT_SECONDS,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        compat.check_not_started()
        use_own_gpu(cluster.local_rank, cluster.local_size)
        self._rank, self._size = cluster.rank, cluster.size
        self._lifeline, hub = call_roll(
            cluster,
            compat.abort_collectives,
            start_timeout_seconds=start_timeout_seconds,
            timeout_seconds=timeout_seconds,
        )
        device = compat.start_collectives(cluster.addresses, cluster.rank)
        self._ops = FlatOps(
            self._rank, self._size, device, self.call, self._lifeline.traced
        )
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
        """Combine tensors over all ranks; see `Collective.all_reduce`.

        Tensors of one type travel together, as one.
        """
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
        shape = tf.shape(tensor)
        counts = tf.reshape(self._ops.gather(shape[:1], f"{name}/rows"), [-1])
        rows = padded_rows(tf.reduce_max(counts))
        padding = [[0, rows - shape[0]]] + [[0, 0]] * (tensor.shape.rank - 1)
        flat = tf.reshape(tf.pad(to_move(tensor), padding), [-1])
        blocks = self._ops.gather(flat, name)
        blocks = tf.reshape(blocks, tf.concat([[self.size, rows], shape[1:]], 0))
        gathered = tf.boolean_mask(blocks, tf.sequence_mask(counts, rows))
        gathered = from_move(gathered, tensor.dtype)
        return tf.ensure_shape(gathered, [None, *tensor.shape[1:]])

    def broadcast(
        self, tensors: Sequence[Any], root_rank: int = 0, *, name: str
    ) -> list[Any]:
        """Give every rank the tensors of one; see `Collective.broadcast`.

        Tensors of one type travel together, as one.
        """
        check_root_rank(root_rank, self.size)
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        results: dict[int, Any] = {}
        for group in _by_dtype({i: to_move(t) for i, t in enumerate(tensors)}):
            moved = list(group.values())
            received = self._ops.broadcast(pack(moved), root_rank, name)
            results.update(zip(group, unpack(received, moved), strict=True))
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
        try:
            with self._lifeline.call(what):
                yield
        except tf.errors.OutOfRangeError:
            raise
        except _PEER_ERRORS:
            # A broken connection is felt at once; whose it was is known a moment later.
            self._lifeline.wait_for_failure()
            raise
        except tf.errors.OpError as error:
            self._lifeline.check()
            # The peers are still in this call, and would wait there.
            self._lifeline.report_error(what, error)
            raise

    def _leave(self, hub: Hub | None) -> None:
        """Say goodbye before the interpreter goes."""
        has_failed = hasattr(sys, "last_value")
        if not has_failed:
            self._lifeline.wait_for_all(_FAREWELL_SECONDS)
        self._lifeline.close()
        if hub is not None:
            hub.join(_FAREWELL_SECONDS)

    def _reduce_group(self, tensors: list[Any], reduction: str, name: str) -> list[Any]:
        """Reduce tensors of one type as one."""
        dtype = tensors[0].dtype
        flat = pack([to_reduce(tensor, reduction) for tensor in tensors])
        reduced = self._ops.reduce(flat, reduction, name)
        if reduction == "mean" and dtype == tf.uint64:
            # Its sum travels as bits of a signed type, which cannot be divided.
            total = from_reduce(reduced, dtype, reduction)
            return unpack(total // tf.constant(self.size, dtype), tensors)
        if reduction == "mean":
            size = tf.constant(self.size, reduced.dtype)
            is_exact = reduced.dtype.is_floating
            reduced = reduced / size if is_exact else reduced // size
        return unpack(from_reduce(reduced, dtype, reduction), tensors)

    def _reduce_slices(self, slices: Any, reduction: str, name: str) -> Any:
        """Reduce `tf.IndexedSlices`: the sum over ranks is all rows of all ranks."""
        values = self.all_gather(slices.values, name=f"{name}/values")
        indices = self.all_gather(slices.indices, name=f"{name}/indices")
        if reduction == "mean":
            size = tf.constant(self.size, values.dtype)
            values = values / size if values.dtype.is_floating else values // size
        return tf.IndexedSlices(values, indices, slices.dense_shape)


def _by_dtype(tensors: dict[int, Any]) -> list[dict[int, Any]]:
    """Group tensors of the same type, in the order of their first appearance."""
    groups: dict[Any, dict[int, Any]] = {}
    for i, tensor in tensors.items():
        groups.setdefault(tensor.dtype, {})[i] = tensor
    return list(groups.values())
