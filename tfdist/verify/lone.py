"""The simulated rank of a verification: the script sees N processes, and one trains."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tfdist.cluster.detect import detect_membership
from tfdist.cluster.model import Membership, Place
from tfdist.collectives.single import SingleCollective
from tfdist.data.sharding import Shard, count_rows, has_rows, rows_of, shuffle_rows
from tfdist.verify.watch import Watch


class LoneWatch(Watch):
    """Watch of a process that trains alone, while the script sees several.

    `order` numbers an order of the rows of each step, which changes rounding alone.
    """

    def __init__(self, steps: int, *, size: int, order: int | None = None) -> None:
        super().__init__(0, steps)
        self._size, self._order = size, order
        # The rank for which the script makes a dataset.
        self._rank = 0

    def connect(self, engine: str) -> SingleCollective:
        """Return the collective of one process, in place of that of N."""
        return SingleCollective()

    def replicas(self, number: int) -> int:
        """Return N, from which a script may derive its global batch size; 1 in a step.

        There it may divide sums over replicas by the number of replicas.
        """
        return 1 if _runs_step() else self._size

    def membership(self) -> Membership:
        """Return the membership that the script sees."""
        size = self.replicas(1)
        return replace(detect_membership(), place=Place(self._rank, size, 0, size))

    def datasets(
        self, distribute: Callable[[Any], Any], dataset_fn: Callable[[Any], Any]
    ) -> Any:
        """Return the datasets of all ranks as one."""
        self.recording.own_datasets = True
        size, parts = self._size, []
        for self._rank in range(size):
            parts.append(dataset_fn(tf.distribute.InputContext(size, self._rank, size)))
        self._rank = 0
        return join(parts)

    @contextmanager
    def step(self, fn: Any, args: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Watch a step, with its rows in another order if there is one."""
        if self._order is not None:
            args = _shuffled(args, self._order)
        with super().step(fn, args) as seen:
            yield seen


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


@tf.autograph.experimental.do_not_convert
def _shuffled(args: Any, number: int) -> Any:
    """Return the arguments of a step with their rows in another order."""
    if args and isinstance(args[0], Shard):
        shard, *rest = args
        with_rows = shard.with_rows
        if isinstance(with_rows, tuple):
            with_rows = count_rows(shard.data)[1]
        else:
            with_rows = tf.unstack(with_rows)
        data = shuffle_rows(shard.data, shard.own, with_rows, number)
        return (shard._replace(data=data), *rest)
    if not any(map(has_rows, tf.nest.flatten(args))):
        return args
    return shuffle_rows(args, *count_rows(args), number)
