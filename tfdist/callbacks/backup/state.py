"""State of one process in a training run, as arrays and JSON."""

import itertools
import json
import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.callbacks.ranks import servers_of
from tfdist.collectives.base import Collective
from tfdist.compat.dynamic_tables import TableIds
from tfdist.compat.keras.callbacks import (
    innermost,
    set_state_of_callback,
    state_of_callback,
)
from tfdist.compat.keras.hooks import any_hooks_of_model
from tfdist.compat.keras.learning_rates import all_optimizers_of, variables_of
from tfdist.compat.keras.own_reduction import OwnReduction
from tfdist.compat.keras.positions import global_seed_state, set_global_seed_state
from tfdist.compat.keras.sharded import goes_by_parts, is_dynamic
from tfdist.compat.keras.variables import raw_state_of
from tfdist.compat.mirrored import assign_here, copies_here
from tfdist.compat.owned_variables import owner_of
from tfdist.experimental.virtual_ranks import arithmetic_of
from tfdist.gradients.reducer import path_of
from tfdist.training.step import state_of_layers

# Variables that are equal on all ranks are saved once, others per rank: partial sums,
# and moving statistics of each rank's rows. Another number of ranks redistributes them,
# but for what ranks have of their own, such as the layers that are local to one.
EQUAL, AVERAGED, SUMMED, OWN = "equal", "averaged", "summed", "own"
# The JSON key that stands for an array, which is saved separately.
_ARRAY = "the array"

# In the paths of variables of optimizers and gradients that are partial sums.
_PARTS = ("gradient_accumulator", "powersgd_residual")

# The path, shape, dtype and kind of each variable.
Specs = Sequence[Sequence[Any]]
# By variable index.
Values = dict[str, np.ndarray]


@dataclass(frozen=True)
class SavedVariables:
    """Saved values of variables, equal on all ranks or of each rank.

    The last `raw` of them are `tf.Variable`s of the model.
    """

    specs: Specs
    equal: Values
    by_rank: Sequence[Values]
    raw: int = 0

    def value(self, index: int, rank: int, size: int) -> np.ndarray:
        """Return the value of a variable for a rank among `size` ranks."""
        path, _, dtype, kind = self.specs[index]
        name = str(index)
        if kind == EQUAL:
            return _with_dtype(self.equal[name], dtype)
        values = [_with_dtype(values[name], dtype) for values in self.by_rank]
        if len(values) == size:
            return values[rank]
        if kind == OWN and not tf.as_dtype(dtype).is_floating:
            # Such as the states of generators: a new rank reuses another's.
            return values[rank % len(values)]
        if kind == OWN:
            raise ValueError(
                "backup_dir holds variables that differ between ranks, of which there "
                f"is another number now. Received: {path} of {len(values)} ranks, for "
                f"{size}. Continue with {len(values)} processes, or remove the folder "
                "to train from the beginning."
            )
        if kind == AVERAGED:
            return np.mean(values, axis=0, dtype=np.float64).astype(values[0].dtype)
        # Only the sum over ranks matters, so rank 0 gets all of it.
        share = np.sum(values, axis=0) if rank == 0 else np.zeros_like(values[0])
        return np.asarray(share, values[0].dtype)


class TrainingVariables:
    """Variables of a built model and its optimizers; with metrics within an epoch."""

    def __init__(self, model: Any, *, with_metrics: bool) -> None:
        metrics = {id(variable): variable for variable in model.metrics_variables}
        self._metrics = [*metrics.values()] if with_metrics else []
        self._others = [v for v in variables_of(model) if id(v) not in metrics]
        # First, because rows are assigned to the ids that there are.
        self._others[:0] = [TableIds(v) for v in model.variables if is_dynamic(v)]
        hooks = any_hooks_of_model(model)
        # With virtual ranks all ranks hold all sums.
        self._has_parts = arithmetic_of(model) is None
        # Without a strategy that keeps them equal, all variables may differ.
        self._is_apart = hooks is None
        if hooks is not None:
            self._others += hooks.gradient_state(model.trainable_variables)
        reducing = [v for v in all_optimizers_of(model) if isinstance(v, OwnReduction)]
        self._others += [v for one in reducing for v in one.variables_of_passes()]
        # A step of parameter servers does not change them.
        self.raw = [] if servers_of(model) is not None else _raw_state_of(model)
        self._of_layers = {id(variable) for variable in state_of_layers(model)}

    @property
    def variables(self) -> list[Any]:
        """All of them, in the order in which they are saved."""
        return [*self._others, *self._metrics, *self.raw]

    def take(self, collective: Collective) -> tuple[Specs, Values, Values]:
        """Return specs, equal values and own values; all ranks must call it."""
        variables = self.variables
        values = [self._value_of(variable) for variable in variables]
        kinds = self._kinds(variables, values, collective)
        specs = [
            (*_spec_of(variable), kind)
            for variable, kind in zip(variables, kinds, strict=True)
        ]
        equal: Values = {}
        own: Values = {}
        for index, (value, kind) in enumerate(zip(values, kinds, strict=True)):
            (equal if kind == EQUAL else own)[str(index)] = _for_numpy(value)
        return specs, equal, own

    def check(self, specs: Specs, folder: str, raw: int = 0) -> None:
        """Refuse the specs of another model, of which `raw` are of TensorFlow."""
        mine = [_spec_of(variable) for variable in self.variables]
        if raw != len(self.raw):
            # The first step may make some.
            mine = mine[: len(mine) - len(self.raw)]
            specs = specs[: len(specs) - raw]
        for one, other in itertools.zip_longest(mine, specs):
            # Paths may differ: they count the layers created so far.
            if one is None or other is None or not _fits(one, other):
                raise ValueError(
                    "backup_dir holds the state of another model or optimizer. "
                    f"Received: {folder} with {_describe(other)}, where this model has "
                    f"{_describe(one)}. Build the model that was trained, or remove "
                    "the folder to train from the beginning."
                )

    def restore(
        self, saved: SavedVariables, collective: Collective, *, metrics: bool
    ) -> None:
        """Restore the metrics, or all other variables."""
        variables = self._metrics if metrics else self._others
        for index, variable in enumerate(variables, len(self._others) * metrics):
            variable.assign(saved.value(index, collective.rank, collective.size))
        if not metrics and saved.raw == len(self.raw):
            for index, variable in enumerate(self.raw, len(saved.specs) - saved.raw):
                value = saved.value(index, collective.rank, collective.size)
                assign_here(variable, value)

    def _value_of(self, variable: Any) -> np.ndarray:
        """Return the value of a variable; on the chief alone if one rank keeps it."""
        if owner_of(variable) is not None:
            value: np.ndarray = variable.owners.move(variable)
            return value if variable.owners.rank == 0 else np.zeros(0)
        if isinstance(variable, tf.Variable) or not goes_by_parts(variable):
            variable = tf.convert_to_tensor(variable)
        return np.asarray(variable.numpy())

    def _kinds(
        self, variables: list[Any], values: list[np.ndarray], collective: Collective
    ) -> list[str]:
        """Return the kind of each variable."""
        metrics = {id(variable) for variable in self._metrics}
        is_apart = self._is_apart and collective.size > 1
        sums = [
            zlib.crc32(np.ascontiguousarray(value).tobytes())
            if is_apart or id(variable) in self._of_layers
            else 0
            for variable, value in zip(variables, values, strict=True)
        ]
        by_rank = [sums]
        if is_apart or self._of_layers:
            by_rank = collective.exchange("the state of layers", sums)
        kinds = []
        for variable, *of_ranks in zip(variables, *by_rank, strict=True):
            # Each rank has other rows of the accumulators of a divided table.
            is_partial = is_part(variable) and owner_of(variable) is None
            is_sum = is_partial or id(variable) in metrics
            kind = SUMMED if is_sum and self._has_parts else EQUAL
            if kind == EQUAL and len(set(of_ranks)) > 1:
                kind = AVERAGED if id(variable) in self._of_layers else OWN
            kinds.append(kind)
        return kinds


def _raw_state_of(model: Any) -> list[Any]:
    """Return the `tf.Variable`s of a model that a training run needs to continue."""
    # The integers of devices may be states of generators, which differ.
    return [
        variable
        for variable in raw_state_of(model)
        if variable.dtype.is_floating or len(copies_here(variable)) == 1
    ]


def is_part(variable: Any) -> bool:
    """Return whether a variable of an optimizer or gradient is a partial sum."""
    return any(name in path_of(variable) for name in _PARTS)


def callback_states(
    callbacks: Sequence[Any], arrays: dict[str, np.ndarray]
) -> list[Any]:
    """Return the class name and JSON state of each callback that has one."""
    # Arrays in the states are moved to `arrays`.
    states = []
    for callback in map(innermost, callbacks):
        kind = type(callback).__name__
        has_own = hasattr(callback, "get_state") and hasattr(callback, "set_state")
        state = callback.get_state() if has_own else state_of_callback(callback)
        if state is not None:
            states.append([kind, _to_json(state, arrays, f"the state of {kind}")])
    return states


def set_callback_states(
    callbacks: Sequence[Any], states: Sequence[Any], arrays: Mapping[str, np.ndarray]
) -> None:
    """Restore the states of callbacks, matched by class name and order."""
    left = list(states)
    for callback in map(innermost, callbacks):
        kind = type(callback).__name__
        found = next((one for one in left if one[0] == kind), None)
        if found is None:
            continue
        left.remove(found)
        state = json.loads(
            json.dumps(found[1]), object_hook=lambda value: _with_array(value, arrays)
        )
        if hasattr(callback, "set_state"):
            callback.set_state(state)
        else:
            set_state_of_callback(callback, state)


def random_states() -> dict[str, Any]:
    """Return the states of Python's, NumPy's and Keras's generators as JSON."""
    version, numbers, gauss = random.getstate()
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": [version, numbers, gauss],
        "numpy": [name, np.asarray(keys).tolist(), *rest],
        "keras": global_seed_state(),
    }


def set_random_states(states: Mapping[str, Any]) -> None:
    """Restore the states that `random_states` returned."""
    # Keras first: creating its generator draws from Python's.
    if states["keras"] is not None:
        set_global_seed_state(states["keras"])
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), *rest))


def _spec_of(variable: Any) -> tuple[str, list[int], str]:
    """Return the path, shape and dtype of a variable."""
    return (
        path_of(variable),
        [int(length) for length in variable.shape],
        tf.as_dtype(variable.dtype).name,
    )


def _fits(spec: Sequence[Any], saved: Sequence[Any]) -> bool:
    """Return whether a variable can take a saved value, also a shorter integer."""
    dtype, of_saved = (tf.as_dtype(each[2]) for each in (spec, saved))
    is_shorter = (dtype, of_saved) == (tf.int64, tf.int32)
    return [*spec[1]] == [*saved[1]] and (dtype == of_saved or is_shorter)


def _describe(spec: Sequence[Any] | None) -> str:
    """Describe a variable in an error."""
    return "nothing" if spec is None else f"{spec[0]} {tuple(spec[1])} {spec[2]}"


def _for_numpy(value: np.ndarray) -> np.ndarray:
    """Return values of a type that NumPy cannot save, such as bfloat16, as integers."""
    is_added = value.dtype.isbuiltin == 2
    return value.view(f"u{value.dtype.itemsize}") if is_added else value


def _with_dtype(value: np.ndarray, dtype: str) -> np.ndarray:
    """Reverse `_for_numpy`."""
    is_own = value.dtype.name == dtype
    return value if is_own else value.view(tf.as_dtype(dtype).as_numpy_dtype)


def _to_json(value: Any, arrays: dict[str, np.ndarray], where: str) -> Any:
    """Convert a value to JSON, moving its arrays to `arrays`."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_to_json(one, arrays, where) for one in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _to_json(value[key], arrays, where) for key in value}
    if isinstance(value, np.ndarray | np.generic) or tf.is_tensor(value):
        # A copy, since training continues while it is written.
        array = np.array(value)
        if not array.dtype.hasobject:
            name = f"{where} {len(arrays)}"
            arrays[name] = _for_numpy(array)
            return {_ARRAY: [name, array.dtype.name]}
    raise TypeError(
        "The state of a callback must consist of numbers, strings, arrays, lists, and "
        f"dictionaries with strings as keys. Received: {type(value).__name__} in "
        f"{where}. Change what its get_state() returns."
    )


def _with_array(value: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the array that a JSON object stands for, or the object itself."""
    if [*value] != [_ARRAY]:
        return value
    name, dtype = value[_ARRAY]
    return _with_dtype(arrays[name], dtype)
