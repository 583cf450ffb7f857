"""Weights divided among ranks; each rank updates its own."""

import math
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.collectives.base import Collective, FusingCollective, name_in_graph
from tfdist.gradients.buckets import (
    ALONE_BYTES,
    BUCKET_BYTES,
    plan_buckets,
    plan_neighbours,
)
from tfdist.sharding.assignment import DIVIDED, assign_owners, rows_by_rank
from tfdist.sharding.rows import Part, join_divided, split_divided

# The name tells a rank that waits alone what the others must do.
_SAVE = "a save by every rank, which shard_optimizer=True needs"
_OWNED = "an owned variable"
# The most numbers of a variable that the chief receives at once.
_PART_ELEMENTS = 2 << 20


class WeightOwners:
    """State of `shard_optimizer`: who owns which weight, and what ranks send for it.

    `forget` is called with each new variable that not every rank keeps.
    """

    def __init__(
        self, collective: Collective, forget: Callable[[Any], None] = lambda _: None
    ) -> None:
        self.rank, self.size = collective.rank, collective.size
        self.forget = forget
        self._collective = collective
        # Whether the owners of a message send their weights at the same time.
        is_fusing = isinstance(collective, FusingCollective)
        self._all_send = collective.sends_at_once or is_fusing
        # The owners of weights by key, for each optimizer.
        self._by_optimizer: weakref.WeakKeyDictionary[Any, Mapping[Any, int]] = (
            weakref.WeakKeyDictionary()
        )
        # The places of the variables that other ranks now send when asked, by id.
        self._places: dict[int, int] | None = None

    def assign(
        self, optimizer: Any, sizes_bytes: Mapping[Any, int], divisible: Collection[Any]
    ) -> None:
        """Choose the owners of an optimizer's weights, given their sizes by key."""
        keys = [*sizes_bytes]
        places = {i for i, key in enumerate(keys) if key in divisible}
        owners = assign_owners([*sizes_bytes.values()], self.size, places)
        self._by_optimizer[optimizer] = dict(zip(keys, owners, strict=True))

    def of(self, optimizer: Any) -> Mapping[Any, int] | None:
        """Return the owners of an optimizer's weights by key, None without any."""
        return self._by_optimizer.get(optimizer)

    def rows(self, variable: Any) -> slice:
        """Return the rows that this rank owns of a divided weight."""
        return rows_by_rank(variable.shape[0], self.size)[self.rank]

    def share(self, weights: Sequence[Any], owners: Sequence[int]) -> None:
        """Assign the owners' values of weights and rows on all other ranks."""
        if tf.executing_eagerly():
            self._share(weights, owners)
            return
        # XLA would join what waits for one owner to what another owner waits for.
        with tf.xla.experimental.jit_scope(compile_ops=False):
            self._share(weights, owners)

    def _share(self, weights: Sequence[Any], owners: Sequence[int]) -> None:
        """Assign the owners' values of weights, without XLA."""
        parts = split_divided(weights, owners, self.size, ALONE_BYTES)
        roots: list[Any] = [part.owner for part in parts]
        for bucket in self._plan(parts):
            values = self._collective.share(
                [parts[i].tensor for i in bucket],
                [roots[i] for i in bucket],
                name=name_in_graph("weights of their owners"),
            )
            for i, value in zip(bucket, values, strict=True):
                parts[i] = parts[i]._replace(tensor=value)
        shared = join_divided(parts)
        for weight, value, owner in zip(weights, shared, owners, strict=True):
            if owner != self.rank:
                weight.assign(value)

    def _plan(self, parts: Sequence[Part]) -> list[list[int]]:
        """Return the numbers of the parts that go together."""
        tensors = [part.tensor for part in parts]
        sizes = [t.shape.num_elements() * t.dtype.size for t in tensors]
        if self._all_send:
            return plan_neighbours(sizes, [t.dtype for t in tensors], self.size)
        kinds = [(part.owner, part.tensor.dtype) for part in parts]
        return plan_buckets(sizes, kinds, BUCKET_BYTES, BUCKET_BYTES)

    @contextmanager
    def reading(self, variables: Sequence[Any]) -> Iterator[None]:
        """Let the chief read other ranks' variables in a block, while they `lend`."""
        if self._places is not None:
            yield
            return
        # Ranks that are elsewhere are named before anything is written.
        self._collective.exchange(_SAVE, len(variables))
        self._places = {id(variable): i for i, variable in enumerate(variables)}
        try:
            yield
        finally:
            self._places = None
            self._collective.exchange(_SAVE, None)

    def lend(self, variables: Sequence[Any]) -> None:
        """Send the chief what it asks for, until it has read all."""
        self._collective.exchange(_SAVE, len(variables))
        while (place := self._collective.exchange(_SAVE, None)[0]) is not None:
            self.move(variables[place])

    def is_lent(self, variable: Any) -> bool:
        """Return whether other ranks lend what they keep of a variable."""
        return self._places is not None and id(variable) in self._places

    def read(self, variable: Any) -> np.ndarray:
        """Return the value of another rank's variable, which that rank lends."""
        place = None if self._places is None else self._places.get(id(variable))
        if place is None:
            raise RuntimeError(
                "With shard_optimizer=True, only the owner of a weight has the "
                f"optimizer's variables of it. Received: {variable.path}, read on rank "
                f"{self.rank} and kept on rank {variable.owner}. Save the model on "
                "every rank, and read the file."
            )
        self._collective.exchange(_SAVE, place)
        return self.move(variable)

    def move(self, variable: Any) -> np.ndarray:
        """Return the owners' value of a variable on the chief; all ranks must call it.

        It comes by parts, so that the chief has little more than the value in memory.
        """
        dtype, shape = tf.as_dtype(variable.dtype), tuple(variable.shape)
        whole = np.empty(shape, dtype.as_numpy_dtype)
        flat, per_row = whole.reshape(-1), math.prod(shape[1:])
        kept = {variable.owner: slice(0, len(flat))}
        if variable.owner == DIVIDED:
            kept = {
                rank: slice(rows.start * per_row, rows.stop * per_row)
                for rank, rows in enumerate(rows_by_rank(shape[0], self.size))
            }
        for rank, elements in kept.items():
            mine = tf.reshape(variable._value, [-1]) if rank == self.rank else None
            for start in range(elements.start, elements.stop, _PART_ELEMENTS):
                stop = min(start + _PART_ELEMENTS, elements.stop)
                part = tf.zeros([stop - start], dtype)
                if mine is not None:
                    part = mine[start - elements.start : stop - elements.start]
                sent = self._collective.broadcast([part], rank, name=_OWNED)[0]
                if self.rank == 0:
                    flat[start:stop] = sent
        return whole
