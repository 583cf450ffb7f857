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
from tfdist.sharding.tables import look_up

# The name tells a rank that waits alone what the others must do.
_SAVE = "a save by every rank, which sharding needs"
_OWNED = "an owned variable"
# The most numbers of a variable that the chief receives at once.
_PART_ELEMENTS = 1 << 19


class WeightOwners:
    """State of sharding: who owns which weight, and what ranks send for it.

    `forget` is called with each new variable that not every rank keeps. Optimizers are
    sharded, or tables of at least so many bytes, or both.
    """

    def __init__(
        self,
        collective: Collective,
        forget: Callable[[Any], None] = lambda _: None,
        *,
        shards_optimizers: bool = True,
        table_bytes: int | None = None,
    ) -> None:
        self.rank, self.size = collective.rank, collective.size
        self.forget = forget
        self.shards_optimizers = shards_optimizers
        self._table_bytes = table_bytes
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

    def divides(self, rows: int, row_bytes: int) -> bool:
        """Return whether each rank keeps some rows of a table alone."""
        is_large = self._table_bytes is not None and (
            rows * row_bytes >= self._table_bytes
        )
        return is_large and rows >= self.size

    def look_up(self, table: Any, ids: Any, weight: Any, *, is_summed: bool) -> Any:
        """Return rows of a divided table; see `tfdist.sharding.tables.look_up`."""
        return look_up(
            *(table._value, table.shape, ids, self._collective, weight),
            is_summed=is_summed,
        )

    def sum(self, values: Sequence[Any], what: str) -> list[Any]:
        """Sum small tensors over ranks, such as squares of what each rank has."""
        return self._collective.all_reduce(values, "sum", name=name_in_graph(what))

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
            for _ in self._parts_of(variables[place]):
                pass

    def is_lent(self, variable: Any) -> bool:
        """Return whether other ranks lend what they keep of a variable."""
        return self._places is not None and id(variable) in self._places

    def read(self, variable: Any) -> np.ndarray:
        """Return the value of another rank's variable, which that rank lends."""
        return self._whole_of(variable, self.read_parts(variable))

    def read_parts(self, variable: Any) -> Iterator[tuple[slice, Any]]:
        """Yield ranges of what ranks lend of a variable, with their values.

        They are ranges of the rows of a divided variable, of the elements of others.
        """
        place = None if self._places is None else self._places.get(id(variable))
        if place is None:
            raise RuntimeError(
                "With shard_optimizer=True, only the owner of a weight has the "
                f"optimizer's variables of it. Received: {variable.path}, read on rank "
                f"{self.rank} and kept on rank {variable.owner}. Save the model on "
                "every rank, and read the file."
            )
        self._collective.exchange(_SAVE, place)
        yield from self._parts_of(variable)

    def move(self, variable: Any) -> np.ndarray:
        """Return the owners' value of a variable on the chief; all ranks must call it.

        It comes by parts, so that the chief has little more than the value in memory.
        """
        return self._whole_of(variable, self._parts_of(variable))

    def _whole_of(
        self, variable: Any, parts: Iterator[tuple[slice, Any]]
    ) -> np.ndarray:
        """Return the value that has these parts."""
        dtype = tf.as_dtype(variable.dtype).as_numpy_dtype
        whole = np.empty(tuple(variable.shape), dtype)
        places = whole if variable.owner == DIVIDED else whole.reshape(-1)
        for part, value in parts:
            if self.rank == 0:
                places[part] = value
        return whole

    def _parts_of(self, variable: Any) -> Iterator[tuple[slice, Any]]:
        """Send the chief what owners have of a variable, part by part."""
        dtype, shape = tf.as_dtype(variable.dtype), tuple(variable.shape)
        kept, rest = {variable.owner: slice(0, math.prod(shape))}, shape[:0]
        if variable.owner == DIVIDED:
            kept, rest = dict(enumerate(rows_by_rank(shape[0], self.size))), shape[1:]
        step = max(1, _PART_ELEMENTS // max(1, math.prod(rest)))
        for rank, places in kept.items():
            if rank == 0 < self.rank:
                # The chief needs nothing sent of its own.
                continue
            read = _reader_of(variable) if rank == self.rank else None
            for start in range(places.start, places.stop, step):
                stop = min(start + step, places.stop)
                if read is None:
                    part = tf.zeros([stop - start, *rest], dtype)
                else:
                    part = read(start - places.start, stop - places.start)
                if rank > 0:
                    (part,) = self._collective.broadcast([part], rank, name=_OWNED)
                yield slice(start, stop), part


def _reader_of(variable: Any) -> Callable[[int, int], Any]:
    """Return what reads a range of the rows of a divided variable, else of elements."""
    if variable.owner == DIVIDED:
        # Without a copy of all rows, which a read takes after sparse updates.
        return lambda *part: variable._value.sparse_read(tf.range(*part))
    flat = tf.reshape(variable._value, [-1])
    return lambda start, stop: flat[start:stop]
