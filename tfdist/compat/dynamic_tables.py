"""Keras variables with rows for ids that are not known before, on each server."""

import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record as _record

from tfdist.compat.keras.sharded import PART_BYTES, ShardedValue, is_dynamic
from tfdist.compat.parameter_server import PlacesVariables, growing_variable
from tfdist.sharding.dynamic import DynamicRows, TableSpec

_HERE = "/device:CPU:0"


class DynamicTable:
    """The parts of a table, one on each server, or a single one in this process."""

    def __init__(self, spec: TableSpec) -> None:
        extended = tf.distribute.get_strategy().extended
        self.spec = spec
        self.is_on_servers = isinstance(extended, PlacesVariables)
        if tf.distribute.has_strategy() and not self.is_on_servers:
            raise ValueError(
                "A DynamicEmbedding is for ParameterServerStrategy, or for no strategy "
                f"to look up. Received: {spec.name} in the scope of "
                f"{type(tf.distribute.get_strategy()).__name__}. Use an Embedding of "
                "hashed ids there, or ParameterServerStrategy."
            )
        devices = extended.servers if self.is_on_servers else [_HERE]
        self._parts = [
            DynamicRows(spec, device, partial(_make_variable, extended, device, spec))
            for device in devices
        ]
        # The given positions of the ids of each part, when they were restored.
        self._order: list[Any] | None = None
        self.values = [DynamicValue(self, [part.rows for part in self._parts])]

    def add_value(self, name: str, initializer: Callable[..., Any]) -> "DynamicValue":
        """Return a variable of an optimizer that lies beside the rows."""
        fill = tf.convert_to_tensor(initializer((1, self.spec.dim), self.spec.dtype))
        columns = [part.add_column(name, fill) for part in self._parts]
        self.values.append(DynamicValue(self, columns, self._order))
        return self.values[-1]

    def size(self) -> int:
        """Return the number of ids that have a row."""
        return sum(int(part.size()) for part in self._parts)

    def find(self, ids: tf.Tensor, *, is_training: bool) -> tf.Tensor:
        """Return rows for a vector of ids."""
        parts, places = self.split(ids, tf.range(tf.size(ids)))
        found = [part.find(own) for part, own in zip(self._parts, parts, strict=True)]
        rows, is_known = (
            tf.dynamic_stitch(places, one) for one in zip(*found, strict=True)
        )
        unknown = tf.where(tf.logical_not(is_known))
        initial = self.spec.initial_rows(tf.gather(ids, unknown[:, 0]))
        if not is_training or self.spec.admit_after > 1:
            initial = tf.zeros_like(initial)
        return tf.tensor_scatter_nd_update(rows, unknown, initial)

    def split(self, ids: tf.Tensor, values: tf.Tensor) -> tuple[Any, Any]:
        """Return the ids of each server, and their values."""
        count = len(self._parts)
        server = self.spec.server_of(ids, count)
        return (
            tf.dynamic_partition(ids, server, count),
            tf.dynamic_partition(values, server, count),
        )

    def admit(self, gradients: list[tf.IndexedSlices]) -> list[tf.IndexedSlices]:
        """Return gradients by row number in place of id; give new ids their rows."""
        pairs = zip(self._parts, gradients, strict=True)
        return [part.admit(gradient) for part, gradient in pairs]

    def state(self) -> list[Any]:
        """Return what `DynamicRows.state` does, of all parts, as arrays."""
        states = [[one.numpy() for one in part.state()] for part in self._parts]
        return [np.concatenate(of_parts) for of_parts in zip(*states, strict=True)]

    def restore(self, state: list[Any]) -> None:
        """Replace all ids by the ids of a state, with initial rows."""
        by_part = []
        for ids in (state[0], state[2]):
            ids = tf.constant(ids, self.spec.id_dtype)
            server = self.spec.server_of(ids, len(self._parts)).numpy()
            by_part.append(
                [np.flatnonzero(server == s) for s in range(len(self._parts))]
            )
        for part, rows, seen in zip(self._parts, *by_part, strict=True):
            taken = zip(state, (rows, rows, seen, seen, [0]), strict=True)
            part.restore([tf.constant(one[places]) for one, places in taken])
        self._order = by_part[0]
        for value in self.values:
            value.order = by_part[0]

    def chunks(self) -> Iterator[list[Any]]:
        """Yield the numbers of the rows in use of each part, in pieces to be sent."""
        step = max(1, PART_BYTES // (self.spec.dim * self.spec.dtype.size))
        for part in self._parts:
            rows = part.in_use().numpy()
            yield [rows[start : start + step] for start in range(0, len(rows), step)]


class DynamicValue(ShardedValue):
    """The rows of a table, or a variable of an optimizer with a row for each of them.

    To Keras it has no rows, since their number changes. As an array it has those in
    use.
    """

    is_dynamic = True

    def __init__(
        self, table: DynamicTable, shards: list[Any], order: list[Any] | None = None
    ) -> None:
        super().__init__(shards)
        self.table, self.order = table, order

    def look_up(self, ids: tf.Tensor, *, is_training: bool) -> tf.Tensor:
        """Return rows for ids of any shape; gradient tapes record the ids."""
        with _record.stop_recording():
            flat = tf.reshape(ids, [-1])
            rows = self.table.find(flat, is_training=is_training)
            shape = tf.concat([tf.shape(ids), [self.table.spec.dim]], 0)
            rows = tf.reshape(rows, shape)
            rows.set_shape(ids.shape.concatenate(self.table.spec.dim))
        return self._recorded(rows, flat)

    def split_gradient(self, gradient: tf.IndexedSlices) -> list[Any]:
        """Return the gradients of the shards, still by ids."""
        ids, values = self.table.split(gradient.indices, gradient.values)
        shape = gradient.dense_shape
        return [
            tf.IndexedSlices(*pair, shape) for pair in zip(values, ids, strict=True)
        ]

    def split(self, value: Any) -> list[Any]:
        """Raise `ValueError`: only the strategy's own steps give ids their rows."""
        raise ValueError(
            "A DynamicEmbedding changes in fit and train_on_batch alone. Received: an "
            f"update of {self.name} by other code. Let the model's train_step do it."
        )

    def numpy(self) -> Any:
        """Return the rows in use as an array."""
        found = [
            shard.sparse_read(rows).numpy()
            for shard, chunks in zip(self.shards, self.table.chunks(), strict=True)
            for rows in chunks
        ]
        dtype = self.dtype.as_numpy_dtype
        return np.concatenate([np.zeros(self._shape, dtype), *found])

    def read_value(self) -> tf.Tensor:
        """Return the current shard, or the rows in use."""
        shard = self.current
        return tf.constant(self.numpy()) if shard is None else shard.read_value()

    value = read_value

    def assign(self, value: Any, **_: Any) -> Any:
        """Assign the current shard, or the rows in use."""
        if self.current is not None:
            self.current.assign(value)
            return self
        parts = list(self.table.chunks())
        sizes = [sum(map(len, chunks)) for chunks in parts]
        if len(value) != sum(sizes):
            raise ValueError(
                "A DynamicEmbedding takes as many rows as it has ids. Received: "
                f"{len(value)} rows for {sum(sizes)} ids. Load a whole file, which "
                "has the ids, too."
            )
        ends = np.cumsum(sizes)[:-1]
        order = self.order or np.split(np.arange(len(value)), ends)
        self.order = None
        for shard, chunks, places in zip(self.shards, parts, order, strict=True):
            for rows in chunks:
                own, places = np.split(places, [len(rows)])
                slices = tf.IndexedSlices(tf.constant(value[own], self.dtype), rows)
                shard.scatter_update(slices)
        return self

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        """Raise `ValueError`: ids are not part of a TensorFlow checkpoint."""
        self._export_to_saved_model_graph()

    def _export_to_saved_model_graph(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `ValueError`: the graph has no ids."""
        raise ValueError(
            "A DynamicEmbedding is saved by model.save and model.save_weights. "
            f"Received: {self.name} for a SavedModel or a checkpoint of TensorFlow. "
            "Export a model with what the export() of the layer returns."
        )


class TableIds:
    """The ids of a table as a variable that holds them, packed in a vector of bytes."""

    dtype, shape, _value = "uint8", (0,), None

    def __init__(self, variable: Any) -> None:
        self.path = f"{variable.path}/ids"
        self._table: DynamicTable = variable._value.table

    def numpy(self) -> Any:
        """Return the packed ids, what is kept with each, and those seen only."""
        file = io.BytesIO()
        for array in self._table.state():
            if array.dtype == object:
                lengths = np.array([len(one) for one in array], np.int64)
                np.save(file, lengths)
                array = np.frombuffer(b"".join(array), np.uint8)
            np.save(file, array)
        return np.frombuffer(file.getvalue(), np.uint8)

    def assign(self, packed: Any) -> None:
        """Restore ids that `numpy` packed."""
        file = io.BytesIO(np.asarray(packed).tobytes())

        def read() -> Any:
            return np.load(file, allow_pickle=False)

        def read_ids() -> Any:
            if self._table.spec.id_dtype != tf.string:
                return read()
            ends, joined = np.cumsum(read()), read().tobytes()
            pairs = zip([0, *ends[:-1]], ends, strict=False)
            return np.array([joined[a:b] for a, b in pairs], object)

        self._table.restore([read_ids(), read(), read_ids(), read(), read()])

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        """Return the packed ids."""
        return tf.convert_to_tensor(self.numpy(), dtype, name=name)


class TableInitializer:
    """Initializer, to Keras, of a new table's rows."""

    def __init__(self, **spec: Any) -> None:
        self._spec = spec

    def __call__(self, shape: Any, dtype: Any = None) -> tf.Tensor:
        """Return no rows."""
        return tf.zeros(shape, dtype)

    def make(self, variable: Any) -> DynamicValue:
        """Return the value of a new Keras variable."""
        dtype = tf.as_dtype(variable._dtype)
        spec = TableSpec(variable.path, dtype=dtype, **self._spec)
        return DynamicTable(spec).values[0]


def make(variable: Any, initializer: Any, beside: Any) -> bool:
    """Initialize a variable as a table, or beside one; return whether it was done."""
    if isinstance(initializer, TableInitializer):
        variable._value = initializer.make(variable)
    elif isinstance(beside, DynamicValue):
        variable._value = beside.table.add_value(variable.path, initializer)
    else:
        return False
    return True


def admitted(variable: Any, gradients: Any) -> Any:
    """Return gradients of shards by row number, where they are by id."""
    value = variable._value
    return value.table.admit(gradients) if is_dynamic(variable) else gradients


def _make_variable(
    extended: Any,
    device: str,
    spec: TableSpec,
    name: str,
    value: tf.Tensor,
    is_trained: bool,
) -> Any:
    """Create a variable on a server, whose first axis can grow."""
    shape = value.shape if value.shape.rank == 0 else [None, *value.shape[1:]]
    announced: AbstractContextManager[Any] = nullcontext()
    if isinstance(extended, PlacesVariables):
        size_bytes = value.shape.num_elements() * value.dtype.size
        place = SimpleNamespace(device=device)
        announced = extended.making(f"{spec.name}/{name}", size_bytes, place)
    with announced:
        return growing_variable(value, shape, trainable=is_trained, name=name)
