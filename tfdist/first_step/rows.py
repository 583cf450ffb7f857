"""The first rows of the first global batch of a `fit` or `evaluate`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdist.data.sharding import Shard, cut_rows, shuffle_rows

# In a part of one row, nothing is apart from another.
LEAST = 4
# Two parts, of three rows and of two.
MOST = 5


class Rows(NamedTuple):
    """Rows of a global batch; `per_row` as `Shard.with_rows`, in integers."""

    data: Any
    number: int
    per_row: list[int]

    def shard(self, start: int, stop: int) -> Shard:
        """Return the shard of a rank: the rows `start` to `stop - 1`."""
        first, end = (tf.constant(row, tf.int64) for row in (start, stop))
        rows = tf.constant(self.number, tf.int64)
        part = cut_rows(self.data, first, end, self.per_row)
        return Shard(part, rows, end - first, ())

    def shuffled(self) -> "Rows":
        """Return the rows in another order."""
        data = shuffle_rows(self.data, self.number, self.per_row)
        return self._replace(data=data)


class FirstRows:
    """The rows that a pipeline keeps for the check.

    They are at most twice those that a rank trains on, which take memory alike.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        # Their spec and number, how many make a row of each leaf, and the leaves.
        self._kept: tuple[Any, int, list[int], list[Any]] | None = None

    def keep(self, batch: Any, rows: Any, per_row: Sequence[Any]) -> Any:
        """Return an op that keeps the first rows of a batch of the pipeline."""
        largest_share = -(-rows // self._ranks)
        number = tf.minimum(tf.minimum(rows, MOST), 2 * largest_share)
        few = cut_rows(batch, 0, number, per_row)
        spec, self._kept = tf.nest.map_structure(_spec_of, few), None
        leaves = tf.nest.flatten(few, expand_composites=True)
        tensors = [leaf for leaf in leaves if _is_array(leaf)]
        places = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]

        def keep(count: Any, per_row: Any, *arrays: Any) -> bool:
            found: list[Any] = [None] * len(leaves)
            for place, array in zip(places, arrays, strict=True):
                found[place] = np.array(array)
            self._kept = spec, int(count), [int(n) for n in per_row], found
            return True

        counts = tf.stack([tf.cast(n, tf.int64) for n in per_row])
        kept = tf.numpy_function(keep, [number, counts, *tensors], tf.bool)
        return tf.ensure_shape(kept, [])

    def take(self) -> Rows | None:
        """Return the rows once, None if there are none or too few."""
        kept, self._kept = self._kept, None
        if kept is None or kept[1] < LEAST:
            return None
        spec, count, per_row, arrays = kept
        leaves = [None if a is None else tf.convert_to_tensor(a) for a in arrays]
        data = tf.nest.pack_sequence_as(spec, leaves, expand_composites=True)
        return Rows(data, count, per_row)


def _is_array(leaf: Any) -> bool:
    """Return whether a leaf is a tensor that NumPy can hold."""
    return isinstance(leaf, tf.Tensor) and leaf.dtype != tf.variant


def _spec_of(leaf: Any) -> Any:
    """Return the spec of a tensor; None for what holds none, as in a step of Keras."""
    is_tensor = isinstance(leaf, tf.Tensor | tf.RaggedTensor | tf.SparseTensor)
    return tf.type_spec_from_value(leaf) if is_tensor else None
