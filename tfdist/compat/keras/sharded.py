"""Keras variables whose rows are sharded over several servers.

TensorFlow's `ShardedVariable` lacks the handle that gradient tapes and Keras need.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record as _record
from tensorflow.python.eager import tape as _tape

from tfdist.compat.parameter_server import as_read
from tfdist.compat.patching import within

# The size of the messages in which large weights travel. They must stay below 2 GiB;
# the allocator keeps the memory of about twenty.
PART_BYTES = 4 << 20

# The index of the shard that sharded values currently stand for.
_CURRENT: ContextVar[int | None] = ContextVar("shard", default=None)


class ShardedValue:
    """Stand-in for a `tf.Variable`: all of its shards, or one within `shard_scope`."""

    # Whether rows are for ids that come with the gradients.
    is_dynamic = False

    def __init__(self, shards: Sequence[tf.Variable]) -> None:
        self.shards = list(shards)
        first = self.shards[0]
        self.sizes = [int(shard.shape[0] or 0) for shard in self.shards]
        self.dtype = first.dtype
        self.trainable = first.trainable
        self.name = first.name
        self._shared_name = first._shared_name
        self.device = first.device
        self._shape = tf.TensorShape([sum(self.sizes), *first.shape[1:]])
        self._unique_id = f"{first._unique_id}_sharded"
        with tf.init_scope():
            # Gradient tapes identify a variable by its handle, which is never read.
            self.handle = tf.raw_ops.VarHandleOp(
                shape=self._shape, dtype=self.dtype, shared_name=self._unique_id
            )
        for number, shard in enumerate(self.shards):
            shard._shard_of = self, number

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the whole variable, or of the current shard."""
        number = _CURRENT.get()
        return self._shape if number is None else self.shards[number].shape

    @property
    def current(self) -> tf.Variable | None:
        """The shard that it stands for, if any."""
        number = _CURRENT.get()
        return None if number is None else self.shards[number]

    def read_value(self) -> tf.Tensor:
        """Return all rows."""
        number = _CURRENT.get()
        if number is not None:
            return self.shards[number].read_value()
        with _record.stop_recording():
            value = tf.concat([shard.read_value() for shard in self.shards], 0)
        return as_read(self, value)

    value = read_value

    def numpy(self) -> Any:
        """Return all rows as an array."""
        return np.asarray(self.read_value())

    def sparse_read(self, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
        """Read only the rows at `indices`, which may have any shape."""
        number = _CURRENT.get()
        if number is not None:
            return self.shards[number].sparse_read(indices, name)
        indices = tf.convert_to_tensor(indices)
        with _record.stop_recording():
            flat = tf.reshape(indices, [-1])
            places, local = self._by_shard(flat, tf.range(tf.size(flat)))
            rows = [
                shard.sparse_read(one)
                for shard, one in zip(self.shards, local, strict=True)
            ]
            rest = self._shape[1:]
            found = tf.reshape(
                tf.dynamic_stitch(places, rows),
                tf.concat([tf.shape(indices), rest.as_list()], 0),
                name=name,
            )
            found.set_shape(indices.shape.concatenate(rest))
        return self._recorded(found, flat)

    def split(self, value: Any) -> list[Any]:
        """Return the parts of a tensor or `tf.IndexedSlices` for each shard."""
        if not isinstance(value, tf.IndexedSlices):
            value = tf.convert_to_tensor(value, self.dtype)
            return list(tf.split(value, self.sizes))
        values, local = self._by_shard(value.indices, value.values)
        return [
            tf.IndexedSlices(
                rows, indices, tf.constant([size, *self._shape[1:]], tf.int64)
            )
            for rows, indices, size in zip(values, local, self.sizes, strict=True)
        ]

    def split_gradient(self, gradient: Any) -> list[Any]:
        """Return the gradients of the shards."""
        return self.split(gradient)

    def join(self, parts: Sequence[Any]) -> Any:
        """Return the inverse of `split`."""
        if not isinstance(parts[0], tf.IndexedSlices):
            return tf.concat(parts, 0)
        starts = np.cumsum([0, *self.sizes[:-1]])
        return tf.IndexedSlices(
            tf.concat([part.values for part in parts], 0),
            tf.concat(
                [
                    part.indices + tf.constant(start, part.indices.dtype)
                    for part, start in zip(parts, starts, strict=True)
                ],
                0,
            ),
            tf.constant(self._shape.as_list(), tf.int64),
        )

    def _by_shard(self, rows: tf.Tensor, values: tf.Tensor) -> tuple[Any, Any]:
        """Partition values by shard; also return their row numbers within it."""
        starts = tf.constant(np.cumsum([0, *self.sizes[:-1]]), rows.dtype)
        # An out-of-range row goes to the first or last shard, which raises.
        shard = tf.searchsorted(starts[1:], rows, side="right")
        count = len(self.shards)
        local = tf.dynamic_partition(rows - tf.gather(starts, shard), shard, count)
        return tf.dynamic_partition(values, shard, count), local

    def _recorded(self, found: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Record a read of rows on gradient tapes, with a sparse gradient."""

        def gradient(upstream: tf.Tensor) -> list[tf.IndexedSlices]:
            shape = self._shape.as_list()
            values = tf.reshape(upstream, [-1, *shape[1:]])
            return [tf.IndexedSlices(values, rows, tf.constant(shape, tf.int64))]

        _tape.variable_accessed(self)
        _record.record_operation("ResourceGather", [found], [self.handle], gradient)
        return found

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        """Return the value for a TensorFlow checkpoint."""
        return {"VARIABLE_VALUE": self.read_value()}

    def _restore_from_tensors(self, restored: dict[str, tf.Tensor]) -> Any:
        """Assign the value of a TensorFlow checkpoint."""
        return _on_shards("assign")(self, restored["VARIABLE_VALUE"])

    def _export_to_saved_model_graph(self, *_: Any, **__: Any) -> Any:
        """Raise `ValueError`, because the graph would need the servers."""
        raise ValueError(
            "A model cannot be exported while its variables lie on several servers. "
            f"Received: {self.name} in {len(self.shards)} shards. Save it with "
            "model.save, and export what keras.models.load_model returns elsewhere."
        )

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        """Convert to a tensor."""
        return tf.convert_to_tensor(self.read_value(), dtype, name=name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Convert to an array."""
        return np.asarray(self.numpy(), dtype)


def _on_rows(name: str) -> Callable[..., Any]:
    """Return a tensor operator that acts on all rows."""

    def operator(self: ShardedValue, *args: Any) -> Any:
        return getattr(self.read_value(), name)(*args)

    return operator


def _on_shards(name: str) -> Callable[..., ShardedValue]:
    """Return a method that calls a method of each shard with its part of a value."""

    def method(self: ShardedValue, value: Any, **_: Any) -> ShardedValue:
        number = _CURRENT.get()
        if number is not None:
            getattr(self.shards[number], name)(value)
            return self
        for shard, part in zip(self.shards, self.split(value), strict=True):
            with tf.device(shard.device):
                getattr(shard, name)(part)
        return self

    return method


for _name in set(tf.Tensor.OVERLOADABLE_OPERATORS) - {"__eq__", "__ne__"}:
    setattr(ShardedValue, _name, _on_rows(_name))
for _name in ("assign", "assign_add", "assign_sub"):
    setattr(ShardedValue, _name, _on_shards(_name))
for _name in ("scatter_update", "scatter_add", "scatter_sub"):
    setattr(ShardedValue, _name, _on_shards(_name))


def shard_scope(variable: Any) -> AbstractContextManager[None]:
    """Make each sharded value stand for one of its shards in a block."""
    # While a shard is updated, the optimizer's state for the whole variable then is the
    # state for that shard. Unsharded variables are not affected.
    _, number = getattr(variable, "_shard_of", (None, None))
    return within(_CURRENT, number)


def whole_of(variable: Any) -> Any:
    """Return the `ShardedValue` of a shard; any other variable unchanged."""
    whole, _ = getattr(variable, "_shard_of", (variable, None))
    return whole


def shards_of(variable: Any) -> list[Any]:
    """Return a Keras variable for each shard, or the unsharded variable itself."""
    value = getattr(variable, "_value", None)
    if not isinstance(value, ShardedValue):
        return [variable]
    shards = []
    for shard in value.shards:
        # All attributes but the shape are those of the whole variable.
        one = copy.copy(variable)
        one._value, one._shape = shard, tuple(shard.shape)
        shards.append(one)
    return shards


def split_gradient(gradient: Any, variable: Any) -> list[Any]:
    """Return the gradients of the shards of a Keras variable."""
    value = getattr(variable, "_value", None)
    if not isinstance(value, ShardedValue):
        return [gradient]
    return value.split_gradient(gradient)


def is_dynamic(variable: Any) -> bool:
    """Return whether a Keras variable has rows for ids that are not known before."""
    # TensorFlow's distributed variables read all copies to find an unknown attribute.
    value = getattr(variable, "_value", None)
    return isinstance(value, ShardedValue) and value.is_dynamic


def goes_by_parts(variable: Any) -> bool:
    """Return whether a Keras variable on servers is too large to be read at once."""
    value = variable._value
    device = tf.DeviceSpec.from_string(getattr(value, "device", None) or "")
    is_on_servers = device.job == "ps" or isinstance(value, ShardedValue)
    return is_on_servers and _bytes_of(variable.shape, value.dtype) > PART_BYTES


def read_parts(value: Any) -> Iterator[tuple[slice, Any]]:
    """Yield ranges of the rows of a variable, each with its array."""
    for shard, rows, part in _parts_of(value):
        with tf.device(shard.device):
            yield part, shard.sparse_read(rows).numpy()


def assign_parts(value: Any, source: Any) -> None:
    """Assign an array, or a dataset in a file, one range of rows after the other."""
    for shard, rows, part in _parts_of(value):
        with tf.device(shard.device):
            update = tf.convert_to_tensor(source[part], shard.dtype)
            shard.scatter_update(tf.IndexedSlices(update, rows))


def _parts_of(value: Any) -> Iterator[tuple[tf.Variable, tf.Tensor, slice]]:
    """Yield a variable or shard with some row numbers, and these rows of the whole."""
    first = 0
    for shard in getattr(value, "shards", [value]):
        count = int(shard.shape[0])
        step = max(1, PART_BYTES // max(1, _bytes_of(shard.shape[1:], shard.dtype)))
        for start in range(0, count, step):
            stop = min(start + step, count)
            rows = tf.range(start, stop, dtype=tf.int64)
            yield shard, rows, slice(first + start, first + stop)
        first += count


def _bytes_of(shape: Any, dtype: tf.DType) -> int:
    """Return the size of a tensor."""
    return math.prod(shape) * dtype.size
