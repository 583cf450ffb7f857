"""One process that stands for all: the script sees N, and one process trains.

A script may ask how many processes there are and choose its global batch size by that.
Its one process must hear the same number, or it would train on other batches. So it
gets the environment of rank 0 of N, and a strategy that is alone all the same. Inside
of a step, where a script divides by the number of replicas what will be summed over
them, there is one.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.cluster import Cluster, facts
from tfdist.collectives import SingleCollective
from tfdist.data.sharding import rows_of
from tfdist.strategies import AllReduceStrategy, connecting, horovod


class LoneCollective(SingleCollective):
    """Takes the place of the collective of N processes, and waits for none.

    Args:
        cluster: Who would take part.
        timeouts: How long to wait for them.
    """

    def __init__(self, cluster: Cluster, **timeouts: float) -> None:
        del cluster, timeouts


def stand_for(size: int) -> None:
    """Let this process train alone, and tell the script of N processes.

    Args:
        size: N.
    """
    setattr(connecting, "TensorFlowCollective", LoneCollective)  # noqa: B010
    for module in (connecting, horovod):
        setattr(module, "connect_horovod", _connect_nobody)  # noqa: B010
    rank_of_pipeline = [0]

    def num_replicas_in_sync(strategy: Any) -> int:
        return 1 if _runs_step() else size

    def size_of_job() -> int:
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

    AllReduceStrategy.num_replicas_in_sync = property(num_replicas_in_sync)
    AllReduceStrategy.distribute_datasets_from_function = distribute
    for name, fact in (("size", size_of_job), ("rank", lambda: rank_of_pipeline[0])):
        setattr(facts, name, functools.wraps(getattr(facts, name))(fact))


def _connect_nobody(process_set: Any = None, **timeouts: float) -> SingleCollective:
    """Take the place of `connect_horovod`."""
    del process_set, timeouts
    return SingleCollective()


def join(parts: list[Any]) -> Any:
    """Make the datasets of N processes one: each batch is theirs, put together.

    Args:
        parts: The batches of each process; where one has no more, the others go on.

    Returns:
        A dataset of the global batches.
    """

    def endless(part: Any) -> Any:
        empty = tf.nest.map_structure(_no_rows, part.element_spec)
        return part.concatenate(tf.data.Dataset.from_tensors(empty).repeat())

    def concatenate(*batches: Any) -> Any:
        return tf.nest.map_structure(lambda *rows: tf.concat(rows, 0), *batches)

    def wrap(_: Any, batches: Any) -> Any:
        return (concatenate(*batches),)

    # Beside a number a tuple is not spread out.
    joined = tf.data.Dataset.zip(tuple(map(endless, parts))).enumerate().map(wrap)
    has_rows = joined.take_while(lambda batch: rows_of(batch) > 0)
    return has_rows.map(lambda batch: batch)


def _no_rows(spec: Any) -> Any:
    """Return an empty batch of a spec, with 0 for each unknown dimension."""
    lengths = [0, *(length or 0 for length in spec.shape[1:])]
    return tf.zeros(lengths, spec.dtype) if spec.dtype != tf.string else _text(lengths)


def _text(lengths: list[int]) -> Any:
    """Return an empty tensor of strings."""
    return tf.fill(lengths, "")


def _runs_step() -> bool:
    """Say whether a strategy runs a step in this thread just now."""
    return bool(
        tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
    )
