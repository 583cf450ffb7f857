"""TensorFlow's collective ops on flat tensors, with instance keys and their order."""

import hashlib
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from tfdist.collectives.base import Collective
from tfdist.collectives.wire_format import pack
from tfdist.compat.random_pipelines import SPREAD
from tfdist.compat.tensorflow import run_independently

_MERGE_OPS = {"sum": "Add", "mean": "Add", "min": "Min", "max": "Max"}
# Chunks of this size are sent from rank to rank while others are added.
_CHUNK_BYTES = 2**20
_MOST_RINGS = 16
_BROADCAST_BYTES = 4 * 2**20
# Two, so that one op sends while the other adds. Each takes several times the memory of
# its data.
MAX_IN_FLIGHT = 2
_MASK = 0x7FFFFFFF
# TensorFlow's key of the group that tries NCCL.
_TRIAL_KEY = 3
# What is sent from GPUs in place of types for which TensorFlow expects the data in host
# memory, or has no kernel of NCCL.
_ON_GPUS = {tf.int32: tf.int64, tf.bfloat16: tf.float32}


class FlatOps:
    """Collective ops of one rank on tensors of shape (elements,).

    `group_key` is TensorFlow's key of the group of ranks; 1 is the processes.
    `communication` is TensorFlow's transport: "auto", "ring" or "nccl".

    On GPUs and with "nccl", the ops of a graph run in the order of tracing, which NCCL
    needs to be the same on all ranks. On CPUs "nccl" gives a ring in that order.
    """

    def __init__(
        self,
        collective: Collective,
        device: str,
        *,
        group_key: int = 1,
        communication: str = "auto",
    ) -> None:
        self._rank, self._size = collective.rank, collective.size
        self._group_key, self._communication = group_key, communication
        self._device = device
        self._call, self._traced = collective.call, collective.recorder.traced
        self._keys = InstanceKeys()
        self._throttle = Throttle()
        self._is_ordered = communication == "nccl" or "GPU" in device
        if self._is_ordered:
            # TensorFlow orders operations that use the same variable, also across
            # branches and loops. GPUs cannot hold a variable of type int32.
            with tf.init_scope(), tf.device(device):
                self._token = tf.Variable(0.0, trainable=False, name="order")

    def reduce(self, flat: Any, reduction: str, name: str) -> Any:
        """Combine a tensor over all ranks; "mean" gives the sum."""
        what = f"all_reduce {name!r} ({reduction}, {flat.dtype.name})"
        elements = flat.shape.num_elements()
        if elements == 0:
            return flat
        if elements is None:
            # A ring cannot send an empty tensor, which this one may be.
            flat = tf.concat([flat, tf.zeros([1], flat.dtype)], 0)
            return self._reduce_whole(flat, reduction, what)[:-1]
        if self._is_ordered:
            return self._reduce_whole(flat, reduction, what)
        return self._reduce_in_rings(flat, reduction, what)

    def gather(self, flat: Any, name: str) -> Any:
        """Stack the tensors of all ranks, which must have equal shapes."""
        what = f"all_gather {name!r} ({flat.dtype.name})"
        # As above: a ring cannot send an empty tensor.
        flat = tf.concat([flat, tf.zeros([1], flat.dtype)], 0)

        def gather(flat: Any) -> Any:
            return tf.raw_ops.CollectiveGatherV2(
                input=flat, ordering_token=self._tokens(), **self._options(what, flat)
            )

        return tf.reshape(self._run(what, flat, gather), [self._size, -1])[:, :-1]

    def all_to_all(self, rows: Any, name: str) -> Any:
        """Send each rank its row, and stack what all ranks send to this one."""
        what = f"all_to_all {name!r} ({rows.dtype.name})"
        shape = tf.shape(rows)

        def exchange(rows: Any) -> Any:
            return tf.raw_ops.CollectiveAllToAllV2(
                input=rows, ordering_token=self._tokens(), **self._options(what, rows)
            )

        # A key stands for one shape, which here is that of all with so many elements.
        flat = self._run(what, tf.reshape(rows, [self._size, -1]), exchange)
        return tf.ensure_shape(tf.reshape(flat, shape), rows.shape)

    def broadcast(self, flat: Any, root_rank: int, name: str) -> Any:
        """Send the tensor of one rank to all; shapes must be equal."""
        if flat.shape.num_elements() == 0:
            return flat
        what = f"broadcast {name!r} from rank {root_rank} ({flat.dtype.name})"
        if not tf.executing_eagerly():
            return self._broadcast(flat, root_rank, what)
        # In parts, because a broadcast takes several times the memory of its data.
        elements, step = flat.shape.num_elements(), _BROADCAST_BYTES // flat.dtype.size
        parts = [
            self._broadcast(
                flat[start : start + step], root_rank, f"{what} from {start}"
            )
            for start in range(0, elements, step)
        ]
        # Joining the parts would copy the tensor, which the root has already.
        return flat if self._rank == root_rank else pack(parts)

    def _reduce_in_rings(self, flat: Any, reduction: str, what: str) -> Any:
        """Combine a tensor of known size, cut into chunks that fit the caches."""
        elements = flat.shape.num_elements()
        key = with_elements(self._keys.base(what), elements)

        def reduce(flat: Any) -> Any:
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

        def reduce(flat: Any) -> Any:
            return tf.raw_ops.CollectiveReduceV2(
                input=flat,
                ordering_token=self._tokens(),
                merge_op=_MERGE_OPS[reduction],
                final_op="Id",
                **self._options(what, flat),
            )

        return self._run(what, flat, reduce)

    def _broadcast(self, flat: Any, root_rank: int, what: str) -> Any:
        """Send the tensor of one rank to all, by one op."""

        def broadcast(flat: Any) -> Any:
            options = self._options(what, flat)
            if self._rank == root_rank:
                return tf.raw_ops.CollectiveBcastSendV2(input=flat, **options)
            return tf.raw_ops.CollectiveBcastRecvV2(
                shape=tf.shape(flat), T=flat.dtype, **options
            )

        def in_order(flat: Any) -> Any:
            # The op takes no token.
            if not self._tokens():
                return broadcast(flat)
            with tf.control_dependencies([self._token.read_value()]):
                result = broadcast(flat)
            with tf.control_dependencies([result]):
                self._token.assign_add(0.0)
            return result

        return tf.ensure_shape(self._run(what, flat, in_order), flat.shape)

    def _tokens(self) -> list[Any]:
        """Return what orders the ops of a graph; eager ones have an order."""
        is_needed = self._is_ordered and not tf.executing_eagerly()
        return [self._token.handle] if is_needed else []

    def _run(self, what: str, flat: Any, op: Callable[[Any], Any]) -> Any:
        """Run an op on a tensor, or add it to the graph, and announce it to peers."""
        elements = flat.shape.num_elements()
        what = f"{what} of {'?' if elements is None else elements} elements"
        dtype = flat.dtype
        if self._is_ordered and dtype in _ON_GPUS:
            with tf.device(self._device):
                flat = tf.cast(flat, _ON_GPUS[dtype])
        if tf.executing_eagerly():
            with self._call(what), tf.device(self._device):
                return tf.cast(op(flat), dtype)
        # XLA cannot compile collectives, which stay outside of the compiled graph.
        apart = tf.xla.experimental.jit_scope(compile_ops=False)
        with tf.device(self._device), apart:
            if self._is_ordered:
                return tf.cast(self._traced(what, [flat], lambda: op(flat)), dtype)
            result = self._throttle.add(
                lambda: self._traced(what, [flat], lambda: op(flat))
            )
        run_independently(result.op)
        return result

    def _options(self, what: str, flat: Any) -> dict[str, Any]:
        """Return the attributes that TensorFlow's ops share."""
        elements = flat.shape.num_elements()
        base = self._keys.base(what)
        is_known = elements is not None
        return {
            "group_size": self._size,
            "group_key": self._group_key,
            "instance_key": tf.constant(with_elements(base, elements))
            if is_known
            else with_elements_of(base, flat),
            "communication_hint": self._communication,
        }


def try_nccl(devices: Sequence[str], size: int, seconds: float) -> None:
    """Sum a number over the GPUs of all processes, of which `devices` are here.

    Raises a `tf.errors.OpError` if it fails or takes longer. After that no collective
    of this process works until `compat.tensorflow.restart_collectives`.
    """

    def total(device: str) -> None:
        with tf.device(device):
            tf.raw_ops.CollectiveReduceV2(
                input=tf.ones([1]),
                ordering_token=[],
                group_size=size,
                group_key=_TRIAL_KEY,
                instance_key=1,
                merge_op="Add",
                final_op="Id",
                communication_hint="nccl",
                timeout_seconds=seconds,
            )

    # The devices wait for each other.
    with ThreadPoolExecutor(len(devices)) as pool:
        for _ in pool.map(total, devices):
            pass


def rings(size_bytes: int, ranks: int) -> int:
    """Return the number of parallel rings for a tensor, from 1 to 16.

    Several rings fill each other's idle time, but chunks far below 1 MiB cost more in
    calls than they save. `tfdist bench allreduce` compares the choice with one ring.
    """
    return max(1, min(_MOST_RINGS, round(size_bytes / (ranks * _CHUNK_BYTES))))


class InstanceKeys:
    """Numbers by which TensorFlow matches ops between ranks.

    Each is a hash of the op's name, kind, type and size: ranks may trace at different
    times, so a running counter would match the wrong ops.
    """

    def __init__(self) -> None:
        self._owners: dict[int, str] = {}

    def base(self, description: str) -> int:
        """Return the key of an op without its number of elements, from 0 to 2**31-1."""
        digest = hashlib.blake2b(description.encode(), digest_size=4).digest()
        base = int.from_bytes(digest, "big") & _MASK
        owner = self._owners.setdefault(base, description)
        if owner != description:
            raise RuntimeError(
                f"Two collectives have the same key. Received: {owner!r} and "
                f"{description!r}. Give one of them another name."
            )
        return base


def with_elements(base: int, elements: int) -> int:
    """Mix the number of elements into a key: TensorFlow ties each key to one shape."""
    return (base ^ (elements * SPREAD)) & _MASK


def with_elements_of(base: int, tensor: Any) -> Any:
    """Mix in the size of a tensor that is unknown until the graph runs."""
    spread = tf.size(tensor, tf.int64) * tf.constant(SPREAD, tf.int64)
    mixed = tf.bitwise.bitwise_xor(tf.constant(base, tf.int64), spread)
    mask = tf.constant(_MASK, tf.int64)
    return tf.cast(tf.bitwise.bitwise_and(mixed, mask), tf.int32)


class Throttle:
    """A limit on the ops of a graph in flight, which run in the order of tracing."""

    def __init__(self) -> None:
        # Names, because an operation would keep its graph alive.
        self._in_flight: weakref.WeakKeyDictionary[Any, deque[str]] = (
            weakref.WeakKeyDictionary()
        )

    def add(self, op: Callable[[], Any]) -> Any:
        """Create an op that waits for the one that is `MAX_IN_FLIGHT` before it."""
        graph = tf.compat.v1.get_default_graph()
        before = self._in_flight.setdefault(graph, deque(maxlen=MAX_IN_FLIGHT))
        is_full = len(before) == MAX_IN_FLIGHT
        wait_for = [graph.get_operation_by_name(before[0])] if is_full else []
        with tf.control_dependencies(wait_for):
            output = op()
        before.append(output.op.name)
        return output
