"""Observed assignments of variables, and their placement on parameter servers."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

from tfdist.compat import dynamic_tables
from tfdist.compat.keras.hooks import any_hooks_of, current_hooks
from tfdist.compat.keras.learning_rates import held_in, state_of_losses
from tfdist.compat.keras.sharded import (
    ShardedValue,
    assign_parts,
    goes_by_parts,
    is_dynamic,
    read_parts,
)
from tfdist.compat.mirrored import assign_here, out_of_function, value_here
from tfdist.compat.owned_variables import make_stand_in
from tfdist.compat.parameter_server import PlacesVariables, drawing_rows
from tfdist.compat.patching import within, wrap

# Methods of a `tf.Variable` that change it.
_HOW = ("add", "sub", "update", "max", "min", "mul", "div")
_ASSIGNING = [f"assign{how}" for how in ("", "_add", "_sub")]
_ASSIGNING += [f"scatter_{how}" for how in _HOW]
_ASSIGNING += [f"scatter_nd_{how}" for how in _HOW[:5]]
# The last is that of `variable[:2].assign(value)`.
_ASSIGNING += ["batch_scatter_update", "_strided_slice_assign"]
# Sharding and placement of variables created now follow this value.
_BESIDE: ContextVar[ShardedValue | None] = ContextVar("beside", default=None)


def lying_beside(value: ShardedValue) -> AbstractContextManager[None]:
    """Shard variables created in the block like `value`, and colocate the shards."""
    return within(_BESIDE, value)


def assign_and_note(original: Any, self: Any, value: Any) -> Any:
    """Assign like Keras; report an assignment within a step."""
    hooks = current_hooks()
    if hooks is not None:
        hooks.note_assigned(self, value)
    if is_dynamic(self):
        # Keras would compare the number of rows.
        self._value.assign(np.asarray(value))
        return value
    if isinstance(value, np.ndarray | h5py.Dataset) and not tf.inside_function():
        if tuple(value.shape) == tuple(self.shape) and goes_by_parts(self):
            assign_parts(self._value, value)
            return value
        value = np.asarray(value)
    return original(self, value)


def is_seed_state(variable: Any) -> bool:
    """Return whether a variable is the state of a `SeedGenerator`."""
    # Keras gives every one this name, and lists it among the variables of layers.
    is_of_keras = isinstance(variable, keras.Variable)
    return is_of_keras and variable.name == "seed_generator_state"


class _View(tf.train.TrackableView):
    """A view that looks into Keras's lists and dictionaries, unlike TensorFlow's."""

    @classmethod
    def children(cls, obj: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return what an object holds, by name, in one order on all ranks."""
        found: dict[str, Any] = super().children(obj, *args, **kwargs)
        for name, held in vars(obj).items() if isinstance(obj, keras.Layer) else ():
            if isinstance(held, list | dict) and held:
                for number, leaf in enumerate(held_in(held)):
                    if isinstance(leaf, tf.__internal__.tracking.Trackable):
                        found[f"{name}/{number}"] = leaf
        return found


def raw_variables_of(model: Any) -> list[Any]:
    """Return the `tf.Variable`s of a model that are not part of Keras's variables."""
    found = [*_View(model).descendants(), *state_of_losses(model, tf.Variable)]
    of_keras = {id(one._value) for one in found if isinstance(one, keras.Variable)}
    raw = {id(one): one for one in found if isinstance(one, tf.Variable)}
    return [one for key, one in raw.items() if key not in of_keras]


def raw_state_of(model: Any) -> list[Any]:
    """Return the `raw_variables_of` a model with values that can be sent and saved."""
    return [
        one
        for one in raw_variables_of(model)
        if one.dtype != tf.string
        and one.shape.is_fully_defined()
        and one.is_initialized()
    ]


def note_raw(model: Any) -> None:
    """Let the `tf.Variable`s of a model report assignments, as Keras's do."""
    for variable in raw_variables_of(model):
        if "assign" not in vars(variable):
            for name in _ASSIGNING:
                if hasattr(variable, name):
                    wrap(variable, name, partial(_note_first, variable, name))


def _note_first(
    variable: Any, method: str, original: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """Report the assignment of a variable, then make it."""
    # Not the original, since assignments may be undone: see `compat.undo`.
    del original
    hooks = any_hooks_of(tf.distribute.get_strategy())
    if hooks is not None:
        # Also the indices of a scatter may depend on data.
        given = [value for value in (*args, *kwargs.values()) if value is not None]
        hooks.note_assigned(variable, given)
    return getattr(type(variable), method)(variable, *args, **kwargs)


def array_by_parts(original: Any, self: Any) -> Any:
    """Return the value as an array like Keras, a large one read by parts."""
    if not goes_by_parts(self):
        return original(self)
    whole = np.empty(tuple(self.shape), self._value.dtype.as_numpy_dtype)
    for part, rows in read_parts(self._value):
        whole[part] = rows
    return whole


def assign_to_copies(original: Any, self: Any, value: Any) -> None:
    """Assign like Keras, or to the copies on devices if there are any."""
    if _has_copies(self):
        assign_here(self, value)
    else:
        original(self, value)


def float_of_copies(original: Any, self: Any) -> float:
    """Convert to float, also a variable with copies on devices."""
    return float(value_here(self) if _has_copies(self) else original(self))


def int_of_copies(original: Any, self: Any) -> int:
    """Convert to int, also a variable with copies on devices."""
    return int(value_here(self) if _has_copies(self) else original(self))


def _has_copies(variable: Any) -> bool:
    """Return whether a variable has copies on devices under a tfdist strategy."""
    value = variable._value
    return isinstance(value, tf.distribute.DistributedValues) and (
        any_hooks_of(value.distribute_strategy) is not None
    )


def initialize_where_it_fits(original: Any, self: Any, initializer: Any) -> None:
    """Initialize like Keras; parameter servers choose the place by size."""
    beside = _BESIDE.get()
    if make_stand_in(self) or dynamic_tables.make(self, initializer, beside):
        return
    strategy = tf.distribute.get_strategy()
    extended = strategy.extended
    if not isinstance(extended, PlacesVariables):
        with out_of_function(strategy):
            original(self, initializer)
        return
    sizes = _sizes_of_shards(self, extended)
    if len(sizes) > 1:
        self._value = _make_shards(self, initializer, sizes, extended)
        return
    size_bytes = _elements_of(self._shape) * tf.as_dtype(self._dtype).size
    with extended.making(self.path, size_bytes):
        original(self, initializer)


def _sizes_of_shards(variable: Any, extended: PlacesVariables) -> Sequence[int]:
    """Return the number of rows of each shard of a new variable."""
    beside = _BESIDE.get()
    if beside is not None:
        return beside.sizes
    if not variable.trainable:
        # Counts, seeds and statistics are small and never looked up by row.
        return [1]
    return extended.sizes_of_shards(
        variable.path, tf.TensorShape(variable._shape), tf.as_dtype(variable._dtype)
    )


def _make_shards(
    variable: Any, initializer: Any, sizes: Sequence[int], extended: PlacesVariables
) -> ShardedValue:
    """Create the shards of a variable, initialized like the whole."""
    beside = _BESIDE.get()
    values = _values_of_shards(variable, initializer, sizes, extended)
    shards, start = [], 0
    for number, size in enumerate(sizes):
        elements = _elements_of((size, *variable._shape[1:]))
        name = f"{variable.path}[{start}:{start + size}]"
        with extended.making(
            name,
            elements * tf.as_dtype(variable._dtype).size,
            beside=None if beside is None else beside.shards[number],
        ):
            # A copy, because newer versions of Keras pass its shape to TensorFlow.
            shard = copy.copy(variable)
            shard._shape = (size, *variable._shape[1:])
            shard._initialize(next(values))
            shards.append(shard._value)
        start += size
    return ShardedValue(shards)


def _values_of_shards(
    variable: Any, initializer: Any, sizes: Sequence[int], extended: PlacesVariables
) -> Iterator[Callable[[], Any]]:
    """Yield a function that returns the initial value of each shard."""
    shape, dtype = tuple(variable._shape), variable._dtype
    if _is_constant(initializer):
        for size in sizes:
            shard = (size, *shape[1:])
            yield partial(initializer, shard, dtype=dtype)
        return
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    if _is_drawn_by_rows(initializer, dtype):
        for start, size in zip(starts, sizes, strict=True):
            yield partial(_rows_of, initializer, shape, dtype, start, start + size)
        return
    # Other initial values depend on the shape of the whole.
    with tf.device(extended.chief):
        whole = tf.convert_to_tensor(initializer(shape, dtype=dtype), dtype)
    for start, size in zip(starts, sizes, strict=True):
        with tf.device(extended.chief):
            rows = whole[start : start + size]
        yield partial(tf.identity, rows)


def draw_rows(initializer: Any, rows: slice, shape: Sequence[int], dtype: str) -> Any:
    """Return rows of the initial value of a variable of this shape."""
    if _is_constant(initializer):
        return initializer((rows.stop - rows.start, *shape[1:]), dtype=dtype)
    if _is_drawn_by_rows(initializer, dtype):
        return _rows_of(initializer, shape, dtype, rows.start, rows.stop)
    return tf.convert_to_tensor(initializer(shape, dtype=dtype), dtype)[rows]


def _rows_of(
    initializer: Any, shape: Sequence[int], dtype: str, start: int, stop: int
) -> Any:
    """Return some rows of the initial value of a variable."""
    with drawing_rows(shape, start, stop):
        return initializer(shape, dtype=dtype)


def _is_drawn_by_rows(initializer: Any, dtype: str) -> bool:
    """Return whether each element is a random number of its own, without memory."""
    kinds = keras.initializers
    random = kinds.RandomUniform, kinds.RandomNormal, kinds.TruncatedNormal
    return (
        (type(initializer) in random or isinstance(initializer, kinds.VarianceScaling))
        and type(initializer).__module__.startswith("keras.")
        and isinstance(initializer.seed, int)
        and dtype in ("float32", "float64")
    )


def _is_constant(initializer: Any) -> bool:
    """Return whether an initializer gives the same number everywhere."""
    kinds = keras.initializers.Zeros, keras.initializers.Ones
    if type(initializer) is keras.initializers.Constant:
        return np.ndim(initializer.value) == 0
    return type(initializer) in kinds


def _elements_of(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape."""
    return tf.TensorShape(shape).num_elements()
