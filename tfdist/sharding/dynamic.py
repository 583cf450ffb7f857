"""Rows of a table for ids that are not known before: one server's part of them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

# The least number of rows by which a part grows; otherwise it grows by an eighth.
LEAST_ROWS = 1024
# The absolute limit of initial values, as in `keras.layers.Embedding`.
_LIMIT = 0.05
# SplitMix64.
_STEP, _FACTORS = 0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)

# Makes a variable on a server, given its name, initial value and whether it is trained.
MakeVariable = Callable[[str, tf.Tensor, bool], Any]


class TableSpec(NamedTuple):
    """Properties of rows, and when ids get and lose one."""

    name: str
    dim: int
    dtype: tf.DType
    id_dtype: tf.DType
    seed: int
    admit_after: int
    expire_steps: int | None

    def initial_rows(self, ids: tf.Tensor) -> tf.Tensor:
        """Return initial values, which depend on the seed and an id alone."""
        if ids.dtype == tf.string:
            ids = tf.strings.to_hash_bucket_fast(ids, 2**63 - 1)
        of_ids = _mix(tf.cast(ids, tf.uint64) + _unsigned(self.seed * _STEP))
        columns = tf.cast(tf.range(self.dim), tf.uint64) * _unsigned(_STEP)
        bits = _mix(of_ids[:, tf.newaxis] + columns)
        fraction = tf.cast(tf.bitwise.right_shift(bits, _unsigned(11)), tf.float64)
        return tf.cast(_LIMIT * (fraction * 2.0**-52 - 1.0), self.dtype)

    def server_of(self, ids: tf.Tensor, servers: int) -> tf.Tensor:
        """Return the server of each id."""
        if ids.dtype == tf.string:
            return tf.cast(tf.strings.to_hash_bucket_fast(ids, servers), tf.int32)
        mixed = _mix(tf.cast(ids, tf.uint64))
        return tf.cast(mixed % _unsigned(servers), tf.int32)


class DynamicRows:
    """The rows of one server: a map from ids to row numbers, and columns by row.

    Only updates change it, one at a time; lookups run at the same time. A row's id is
    written before its values, and found only after them.
    """

    def __init__(self, spec: TableSpec, device: str, make: MakeVariable) -> None:
        self._spec, self._make = spec, make
        self.device = device
        with tf.init_scope(), tf.device(device):
            table = tf.lookup.experimental.MutableHashTable
            self._numbers = table(spec.id_dtype, tf.int64, -1)
            # How often ids without a row were looked up.
            self._seen = table(spec.id_dtype, tf.int64, 0)
            # Variables by row, with what a new row gets; None: what depends on its id.
            self._columns: list[tuple[Any, tf.Tensor | None]] = []
            self._ids = self._add("ids", tf.zeros([1], spec.id_dtype))
            self.rows = self._add("rows", tf.zeros([1, spec.dim], spec.dtype), True)
            self._free = make("free", tf.range(1, dtype=tf.int64), False)
            # The unused rows are the first in `_free`.
            self._left = make("left", tf.ones([], tf.int64), False)
            self._step = make("step", tf.zeros([], tf.int64), False)
            if spec.expire_steps is not None:
                self._used_at = self._add("used_at", tf.zeros([1], tf.int64))

    def add_column(self, name: str, fill: tf.Tensor) -> Any:
        """Return a new variable by row, each row of which begins with `fill`."""
        with tf.init_scope(), tf.device(self.device):
            column = self._make(name, tf.repeat(fill, self._capacity(), 0), False)
        self._columns.append((column, fill))
        return column

    def size(self) -> tf.Tensor:
        """Return the number of ids that have a row."""
        return self._numbers.size()

    def find(self, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return rows for ids, and whether they are those of the ids."""
        with tf.device(self.device):
            numbers = self.numbers(ids)
            is_known, numbers = numbers >= 0, tf.maximum(numbers, 0)
            rows = self.rows.sparse_read(numbers)
            if self._spec.expire_steps is not None:
                # An update may have given the row to another id meanwhile.
                with tf.control_dependencies([rows]):
                    is_known &= self._ids.sparse_read(numbers) == ids
            return rows, is_known

    def admit(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """Return the gradient of ids as one of row numbers; give new ids their rows."""
        with tf.device(self.device):
            ids, places, counts = tf.unique_with_counts(gradient.indices, tf.int64)
            numbers = self.numbers(ids)
            if self._spec.expire_steps is not None:
                self._step.assign_add(1)
                self._note_use(tf.boolean_mask(numbers, numbers >= 0))
            new = tf.boolean_mask(ids, numbers < 0)
            if self._spec.admit_after == 1:
                self._insert(new)
                numbers = self.numbers(ids)
            else:
                # Their gradients are of the default row.
                self._insert(self._ready(new, tf.boolean_mask(counts, numbers < 0)))
            numbers = tf.gather(numbers, places)
            kept = tf.where(numbers >= 0)[:, 0]
            shape = tf.stack([self._capacity(), self._spec.dim])
            return tf.IndexedSlices(
                tf.gather(gradient.values, kept), tf.gather(numbers, kept), shape
            )

    def in_use(self) -> tf.Tensor:
        """Return the numbers of the rows in use, in order."""
        with tf.device(self.device):
            return tf.sort(tf.reshape(self._numbers.export()[1], [-1]))

    def state(self) -> list[tf.Tensor]:
        """Return ids and their last use, ids seen and how often, and the last step."""
        with tf.device(self.device):
            rows = self.in_use()
            used_at = tf.zeros_like(rows)
            if self._spec.expire_steps is not None:
                used_at = self._used_at.sparse_read(rows)
            last = self._step.read_value()[tf.newaxis]
            return [self._ids.sparse_read(rows), used_at, *self._seen.export(), last]

    def restore(self, state: Sequence[tf.Tensor]) -> None:
        """Replace all ids by those of a state, with initial rows in its order."""
        ids, used_at, seen, counts, last = state
        with tf.device(self.device):
            for table in (self._numbers, self._seen):
                table.remove(table.export()[0])
            self._free.assign(tf.range(self._capacity()))
            self._left.assign(self._capacity())
            self._insert(ids)
            self._seen.insert(seen, counts)
            self._step.assign(last[0])
            if self._spec.expire_steps is not None:
                slices = tf.IndexedSlices(used_at, self.numbers(ids))
                self._used_at.scatter_update(slices)

    def numbers(self, ids: tf.Tensor) -> tf.Tensor:
        """Return the row numbers of ids."""
        with tf.device(self.device):
            return tf.reshape(self._numbers.lookup(ids), [-1])

    def _add(self, name: str, first: tf.Tensor, is_trained: bool = False) -> Any:
        self._columns.append((self._make(name, first, is_trained), None))
        return self._columns[-1][0]

    def _capacity(self) -> tf.Tensor:
        return tf.shape(self._ids, tf.int64)[0]

    def _note_use(self, numbers: tf.Tensor) -> None:
        now = tf.fill(tf.shape(numbers), self._step.read_value())
        self._used_at.scatter_update(tf.IndexedSlices(now, numbers))

    def _ready(self, ids: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """Count ids without a row, and return those that get one."""
        steps = self._spec.expire_steps
        if steps is not None:

            def forget() -> tf.Tensor:
                self._seen.remove(self._seen.export()[0])
                return tf.constant(0)

            _if(self._step % steps == 0, forget)
        seen = tf.reshape(self._seen.lookup(ids), [-1]) + counts
        is_ready = seen >= self._spec.admit_after
        rest = tf.logical_not(is_ready)
        self._seen.insert(tf.boolean_mask(ids, rest), tf.boolean_mask(seen, rest))
        ready = tf.boolean_mask(ids, is_ready)
        self._seen.remove(ready)
        return ready

    def _insert(self, ids: tf.Tensor) -> None:
        """Give rows to ids that have none."""
        count = tf.size(ids, tf.int64)

        def make_room() -> tf.Tensor:
            missing = count - self._left
            if self._spec.expire_steps is not None:
                self._free_expired()
                # So many that the search for old ones pays.
                missing = count + self._capacity() // 16 - self._left
            return _if(missing > 0, lambda: self._grow(missing))

        _if(count > self._left, make_room)
        left = self._left - count
        numbers = tf.sort(self._free[left : left + count])
        self._left.assign(left)
        # In this order, because lookups go on: the id, its values, and where it is.
        last: list[Any] = []
        for column, fill in self._columns:
            if column is self._ids:
                values = ids
            elif column is self.rows:
                values = self._spec.initial_rows(ids)
            elif fill is None:
                values = tf.fill(tf.shape(ids), self._step.read_value())
            else:
                values = tf.repeat(fill, count, 0)
            with tf.control_dependencies(last):
                write = tf.raw_ops.ResourceScatterUpdate
                last = [write(resource=column.handle, indices=numbers, updates=values)]
        with tf.control_dependencies(last):
            self._numbers.insert(ids, numbers)

    def _free_expired(self) -> None:
        """Free the rows of ids that no update has had for long."""
        ids, numbers = (tf.reshape(one, [-1]) for one in self._numbers.export())
        used_at = self._used_at.sparse_read(numbers)
        is_old = used_at < self._step - self._spec.expire_steps
        self._numbers.remove(tf.boolean_mask(ids, is_old))
        old = tf.boolean_mask(numbers, is_old)
        self._free.assign(tf.concat([self._free[: self._left], old], 0))
        self._left.assign_add(tf.size(old, tf.int64))

    def _grow(self, missing: tf.Tensor) -> tf.Tensor:
        """Add rows, at least those that are missing."""
        old = self._capacity()
        more = tf.maximum(missing, tf.maximum(old // 8, LEAST_ROWS))
        last: list[Any] = []
        for column, fill in self._columns:
            # One after another, because each takes several times its memory meanwhile.
            with tf.control_dependencies(last):
                rest = tf.zeros([more, *column.shape[1:]], column.dtype)
                if fill is not None:
                    rest += fill
                value = tf.concat([column.read_value(), rest], 0)
                last = [
                    tf.raw_ops.AssignVariableOp(resource=column.handle, value=value)
                ]
        rows = tf.range(old, old + more)
        self._free.assign(tf.concat([self._free[: self._left], rows], 0))
        self._left.assign_add(more)
        return tf.constant(0)


def _if(condition: tf.Tensor, then: Callable[[], tf.Tensor]) -> tf.Tensor:
    """Call a function that returns zero, if a condition holds."""
    return tf.cond(condition, then, lambda: tf.constant(0))


def _mix(bits: tf.Tensor) -> tf.Tensor:
    """Return numbers of which each bit depends on all bits of the given ones."""
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        bits = tf.bitwise.bitwise_xor(
            bits, tf.bitwise.right_shift(bits, _unsigned(shift))
        )
        bits *= _unsigned(factor)
    return tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, _unsigned(31)))


def _unsigned(number: int) -> tf.Tensor:
    return tf.constant(number % 2**64, tf.uint64)
