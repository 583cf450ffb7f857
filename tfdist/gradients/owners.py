"""Weights divided among ranks; each rank updates its own."""

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.collectives.base import Collective, FusingCollective, name_in_graph
from tfdist.compat.owned_variables import owner_of
from tfdist.gradients.buckets import (
    ALONE_BYTES,
    BUCKET_BYTES,
    plan_buckets,
    plan_neighbours,
)
from tfdist.scaling.owners import DIVIDED, assign_owners

# The name tells a rank that waits alone what the others must do.
_SAVE = "a save by every rank, which shard_optimizer=True needs"
_OWNED = "an owned variable"
# The most numbers of a variable that the chief receives at once.
_PART_ELEMENTS = 2 << 20


def rows_by_rank(rows: int, ranks: int) -> list[slice]:
    """Divide the rows of a weight evenly among the ranks."""
    stops = [rows * rank // ranks for rank in range(ranks + 1)]
    return [slice(*pair) for pair in itertools.pairwise(stops)]


def split_divided(
    tensors: Sequence[Any], owners: Sequence[int | None], ranks: int
) -> tuple[list[int], list[Any], list[Any]]:
    """Return the messages of tensors: position, what is sent, and its owner.

    Of dense tensors with `DIVIDED` as owner, each rank owns some rows.
    """
    positions: list[int] = []
    messages: list[Any] = []
    roots: list[int | None] = []
    for i, (tensor, owner) in enumerate(zip(tensors, owners, strict=True)):
        parts, owners_of_parts = [tensor], [owner]
        if owner == DIVIDED and isinstance(tensor, tf.IndexedSlices):
            owners_of_parts = [None]
        elif owner == DIVIDED:
            row_bytes = tensor.shape[1:].num_elements() * tensor.dtype.size
            step = max(1, ALONE_BYTES // max(1, row_bytes))
            cut = [
                (start - rows.start, rank, min(step, rows.stop - start))
                for rank, rows in enumerate(rows_by_rank(tensor.shape[0], ranks))
                for start in range(rows.start, rows.stop, step)
            ]
            parts = tf.split(tensor, [length for *_, length in cut])
            # Neighbours have different owners, which send at the same time.
            order = sorted(range(len(cut)), key=cut.__getitem__)
            parts = [parts[n] for n in order]
            owners_of_parts = [cut[n][1] for n in order]
        positions += [i] * len(parts)
        messages += parts
        roots += owners_of_parts
    return positions, messages, roots


def join_divided(
    positions: Sequence[int], parts: Sequence[Any], owners: Sequence[int | None]
) -> list[Any]:
    """Return the tensors of the parts that `split_divided` returned."""
    by_position: dict[int, list[int]] = {}
    for n, i in enumerate(positions):
        by_position.setdefault(i, []).append(n)
    tensors = []
    for numbers in by_position.values():
        # By owner, and of one owner in the order of the rows.
        joined = [parts[n] for n in sorted(numbers, key=lambda n: owners[n] or 0)]
        tensors.append(tf.concat(joined, 0) if len(joined) > 1 else joined[0])
    return tensors


class WeightOwners:
    """Ranks that own weights, and what they send to each other."""

    def __init__(self, collective: Collective) -> None:
        self.rank, self.size = collective.rank, collective.size
        self._collective = collective
        # Whether the owners of a message send their weights at the same time.
        is_fusing = isinstance(collective, FusingCollective)
        self._all_send = collective.sends_at_once or is_fusing
        # The places of the variables that other ranks now send when asked, by id.
        self._places: dict[int, int] | None = None

    def assign(
        self, sizes_bytes: Sequence[int], divisible: Collection[int]
    ) -> list[int]:
        """Return the owner of each weight; see `assign_owners`."""
        return assign_owners(sizes_bytes, self.size, divisible)

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
        positions, parts, roots = split_divided(weights, owners, self.size)
        for bucket in self._plan(parts, roots):
            group = [parts[i] for i in bucket]
            ranks = [roots[i] for i in bucket]
            values = self._collective.share(
                group, ranks, name=name_in_graph("weights of their owners")
            )
            for i, value in zip(bucket, values, strict=True):
                parts[i] = value
        shared = join_divided(positions, parts, roots)
        for weight, value, owner in zip(weights, shared, owners, strict=True):
            if owner != self.rank:
                weight.assign(value)

    def _plan(self, weights: Sequence[Any], owners: Sequence[int]) -> list[list[int]]:
        """Return the positions of the weights that go together."""
        sizes = [w.shape.num_elements() * w.dtype.size for w in weights]
        dtypes = [weight.dtype for weight in weights]
        if self._all_send:
            return plan_neighbours(sizes, dtypes, self.size)
        kinds = [*zip(owners, dtypes, strict=True)]
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

    def read(self, variable: Any) -> np.ndarray:
        """Return the value of another rank's variable, which that rank lends."""
        place = None if self._places is None else self._places.get(id(variable))
        if place is None:
            raise RuntimeError(
                "With shard_optimizer=True, only the owner of a weight has the "
                f"optimizer's variables of it. Received: {variable.path}, read on rank "
                f"{self.rank} and kept on rank {owner_of(variable)}. Save the model on "
                "every rank, and read the file."
            )
        self._collective.exchange(_SAVE, place)
        return self.move(variable)

    def is_lent(self, variable: Any) -> bool:
        """Return whether other ranks lend what they keep of a variable."""
        return self._places is not None and id(variable) in self._places

    def move(self, variable: Any) -> np.ndarray:
        """Return the owners' value of a variable on the chief; all ranks must call it.

        It comes by parts, so that the chief has little more than the value in memory.
        """
        owner, dtype = owner_of(variable), tf.as_dtype(variable.dtype)
        assert owner is not None, "every rank has its own value"
        shape = tuple(variable.shape)
        whole = np.empty(shape, dtype.as_numpy_dtype)
        flat, per_row = whole.reshape(-1), math.prod(shape[1:])
        kept = {owner: slice(0, len(flat))}
        if owner == DIVIDED:
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
