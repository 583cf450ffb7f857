"""Lone process of a verification: the script sees N processes, and one trains."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.cluster import facts
from tfdist.collectives import SingleCollective
from tfdist.compat.watching import replace
from tfdist.data.sharding import rows_of
from tfdist.strategies import AllReduceStrategy, connecting, horovod


def stand_for(size: int) -> None:
    """Train alone in this process, while the script sees `size` processes."""
    # A script may derive its global batch size from the number of replicas, so it must
    # see N. Inside a step it sees one, because it may divide sums over replicas by the
    # number of replicas.
    replace(connecting, "TensorFlowCollective", connect_alone)
    for module in (connecting, horovod):
        replace(module, "connect_horovod", connect_alone)
    rank_of_pipeline = [0]

    def size_now(strategy: Any = None) -> int:
        del strategy
        return 1 if _runs_step() else size

    def distribute(
        strategy: Any, dataset_fn: Callable[[Any], Any], options: Any = None
    ) -> Any:
        del strategy, options
        parts = []
        for rank in range(size):
            rank_of_pipeline[0] = rank
            parts.append(dataset_fn(tf.distribute.InputContext(size, rank, size)))
        rank_of_pipeline[0] = 0
        return join(parts)

    replace(AllReduceStrategy, "num_replicas_in_sync", property(size_now))
    replace(AllReduceStrategy, "distribute_datasets_from_function", distribute)
    for name, fact in (("size", size_now), ("rank", lambda: rank_of_pipeline[0])):
        replace(facts, name, functools.wraps(getattr(facts, name))(fact))


def connect_alone(processes: Any = None, **timeouts: float) -> SingleCollective:
    """Return the collective of one process, in place of that of N."""
    del processes, timeouts
    return SingleCollective()


def join(parts: list[Any]) -> Any:
    """Concatenate the batches of N processes; a part that has ended adds no rows."""

    def endless(part: Any) -> Any:
        empty = tf.nest.map_structure(_no_rows, part.element_spec)
        return part.concatenate(tf.data.Dataset.from_tensors(empty).repeat())

    def concatenate(*batches: Any) -> Any:
        return tf.nest.map_structure(lambda *rows: tf.concat(rows, 0), *batches)

    def wrap(_: Any, batches: Any) -> Any:
        return (concatenate(*batches),)

    # After `enumerate`, `map` passes the tuple of batches as one argument.
    joined = tf.data.Dataset.zip(tuple(map(endless, parts))).enumerate().map(wrap)
    has_rows = joined.take_while(lambda batch: rows_of(batch) > 0)
    return has_rows.map(lambda batch: batch)


def _no_rows(spec: Any) -> Any:
    """Return an empty batch of a spec, with 0 for each unknown dimension."""
    return tf.zeros([0, *(length or 0 for length in spec.shape[1:])], spec.dtype)


def _runs_step() -> bool:
    """Return whether a strategy is running a step in this thread."""
    return bool(
        tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
    )
