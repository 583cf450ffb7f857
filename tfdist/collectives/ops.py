"""TensorFlow's collective ops on flat tensors, each with the key that pairs it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.collectives.keys import Keys, with_elements, with_elements_of
from tfdist.collectives.packing import pack
from tfdist.collectives.turns import Turns
from tfdist.compat.tensorflow import run_independently

_MERGE_OPS = {"sum": "Add", "mean": "Add", "min": "Min", "max": "Max"}
# Chunks of this size pass from rank to rank while others are being added up.
_CHUNK_BYTES = 2**20
_MOST_RINGS = 16
_BROADCAST_BYTES = 4 * 2**20


class Group(NamedTuple):
    """The ranks of an op, as TensorFlow knows them.

    Attributes:
        key: A number; ops of one process in several groups have different ones.
        communication: What TensorFlow is to use, "auto", "ring" or "nccl".
    """

    key: int = 1
    communication: str = "auto"


PROCESSES = Group()


class FlatOps:
    """The ops of one rank, on tensors of shape (elements,).

    Args:
        rank: This rank.
        size: How many ranks there are.
        device: The full name of the device on which the ops run.
        call: Marks an op that runs now; see `Collective.call`.
        traced: Notes an op that a graph will run; see `Lifeline.traced`.
        group: What the ranks are for TensorFlow. Default `PROCESSES`.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        device: str,
        call: Callable[[str], AbstractContextManager[None]],
        traced: Callable[[str], None],
        group: Group = PROCESSES,
    ) -> None:
        self._rank, self._size = rank, size
        self._group_key, self._communication = group
        self._device = device
        self._call, self._traced = call, traced
        self._keys = Keys()
        self._turns = Turns()

    def reduce(self, flat: Any, reduction: str, name: str) -> Any:
        """Combine a tensor over all ranks; "mean" gives the sum.

        Args:
            flat: Of a type that TensorFlow reduces.
            reduction: One of `REDUCTIONS`.
            name: What is reduced.

        Returns:
            A tensor of the same shape.
        """
        what = f"all_reduce {name!r} ({reduction}, {flat.dtype.name})"
        elements = flat.shape.num_elements()
        if elements == 0:
            return flat
        if elements is None:
            # A ring cannot pass nothing around, and only here may there be nothing.
            flat = tf.concat([flat, tf.zeros([1], flat.dtype)], 0)
            return self._reduce_whole(flat, reduction, what)[:-1]
        if "GPU" in self._device:
            return self._reduce_whole(flat, reduction, what)
        return self._reduce_in_rings(flat, reduction, what)

    def gather(self, flat: Any, name: str) -> Any:
        """Join the tensors of all ranks, which have equal shapes.

        Args:
            flat: Of a type that TensorFlow gathers.
            name: What is gathered.

        Returns:
            A tensor of shape (size, elements).
        """
        what = f"all_gather {name!r} ({flat.dtype.name})"
        # As above: a ring cannot pass nothing around.
        flat = tf.concat([flat, tf.zeros([1], flat.dtype)], 0)

        def gather() -> Any:
            return tf.raw_ops.CollectiveGatherV2(
                input=flat,
                group_size=self._size,
                group_key=self._group_key,
                instance_key=self._key(what, flat),
                ordering_token=[],
                communication_hint=self._communication,
            )

        return tf.reshape(self._run(what, flat, gather), [self._size, -1])[:, :-1]

    def broadcast(self, flat: Any, root_rank: int, name: str) -> Any:
        """Give every rank the tensor of one.

        Args:
            flat: Of a type that TensorFlow broadcasts, of equal shapes.
            root_rank: Whose tensor is given.
            name: What is broadcast.

        Returns:
            A tensor of the same shape.
        """
        if flat.shape.num_elements() == 0:
            return flat
        what = f"broadcast {name!r} from rank {root_rank} ({flat.dtype.name})"
        if not tf.executing_eagerly():
            return self._broadcast(flat, root_rank, what)
        # One part after the other, for each is on its way in several copies.
        elements, step = flat.shape.num_elements(), _BROADCAST_BYTES // flat.dtype.size
        parts = [
            self._broadcast(
                flat[start : start + step], root_rank, f"{what} from {start}"
            )
            for start in range(0, elements, step)
        ]
        # To join them would only make a copy of what the root has.
        return flat if self._rank == root_rank else pack(parts)

    def _reduce_in_rings(self, flat: Any, reduction: str, what: str) -> Any:
        """Combine a tensor of known size, cut into chunks that fit the caches."""
        elements = flat.shape.num_elements()
        key = with_elements(self._keys.base(what), elements)

        def reduce() -> Any:
            return tf.raw_ops.CollectiveReduce(
                input=flat,
                group_size=self._size,
                group_key=self._group_key,
                instance_key=key,
                merge_op=_MERGE_OPS[reduction],
                final_op="Id",
                subdiv_offsets=[0] * rings(elements * flat.dtype.size, self._size),
            )

        return self._run(what, flat, reduce)

    def _reduce_whole(self, flat: Any, reduction: str, what: str) -> Any:
        """Combine a tensor of any size."""

        def reduce() -> Any:
            return tf.raw_ops.CollectiveReduceV2(
                input=flat,
                group_size=self._size,
                group_key=self._group_key,
                instance_key=self._key(what, flat),
                ordering_token=[],
                communication_hint=self._communication,
                merge_op=_MERGE_OPS[reduction],
                final_op="Id",
            )

        return self._run(what, flat, reduce)

    def _broadcast(self, flat: Any, root_rank: int, what: str) -> Any:
        """Give every rank the tensor of one, by one op."""

        def broadcast() -> Any:
            common = {
                "group_size": self._size,
                "group_key": self._group_key,
                "instance_key": self._key(what, flat),
                "communication_hint": self._communication,
            }
            if self._rank == root_rank:
                return tf.raw_ops.CollectiveBcastSendV2(input=flat, **common)
            return tf.raw_ops.CollectiveBcastRecvV2(
                shape=tf.shape(flat), T=flat.dtype, **common
            )

        return tf.ensure_shape(self._run(what, flat, broadcast), flat.shape)

    def _run(self, what: str, flat: Any, op: Callable[[], Any]) -> Any:
        """Run an op, or put it into the graph, and let the peers know of it."""
        elements = flat.shape.num_elements()
        what = f"{what} of {'?' if elements is None else elements} elements"
        if tf.executing_eagerly():
            with self._call(what), tf.device(self._device):
                return op()
        self._traced(what)
        # A graph that XLA compiles cannot hold a collective, but stands beside it.
        apart = tf.xla.experimental.jit_scope(compile_ops=False)
        with tf.device(self._device), apart:
            result = self._turns.take(op)
        if "GPU" not in self._device:
            # NCCL needs one order on all ranks, which the graph's own gives it.
            run_independently(result.op)
        return result

    def _key(self, what: str, flat: Any) -> Any:
        """Return the key of an op on a tensor."""
        elements = flat.shape.num_elements()
        base = self._keys.base(what)
        if elements is None:
            return with_elements_of(base, flat)
        return tf.constant(with_elements(base, elements))


def rings(size_bytes: int, ranks: int) -> int:
    """Choose by how many rings, side by side, a tensor goes round.

    Each ring cuts its part into one chunk for each rank. Several rings fill the gaps
    in which one of them waits; chunks much smaller than 1 MiB cost more calls than
    they save. `tfdist bench allreduce` compares the choice with a single ring.

    Args:
        size_bytes: The size of the tensor.
        ranks: How many ranks there are.

    Returns:
        The number of rings, from 1 to 16.

    Example:
        >>> rings(2**20, 2), rings(8 * 2**20, 2), rings(2**30, 2)
        (1, 4, 16)
    """
    return max(1, min(_MOST_RINGS, round(size_bytes / (ranks * _CHUNK_BYTES))))
