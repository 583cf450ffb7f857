"""What the callbacks of a `fit` remember, as a file can hold it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.callbacks.run_state import of_numpy, of_type
from tfdist.compat.keras.callback_states import (
    set_state_of_callback,
    state_of_callback,
)
from tfdist.compat.keras.callbacks import innermost

# Stands in JSON for an array that is written beside it.
_ARRAY = "the array"


def callback_states(
    callbacks: Sequence[Any], arrays: dict[str, np.ndarray]
) -> list[Any]:
    """Return what callbacks remember.

    Of a kind that nobody here knows it is what its `get_state()` returns, if it has
    one: numbers, strings, arrays, and lists and dictionaries of those.

    Args:
        callbacks: The callbacks.
        arrays: Takes the arrays that are among it.

    Returns:
        The name of the kind and the state of each that remembers something, as JSON
        can hold it.

    Raises:
        TypeError: If a callback has a state that is not of such types.
    """
    states = []
    for callback in map(innermost, callbacks):
        kind = type(callback).__name__
        state = _get(callback)
        if state is not None:
            states.append([kind, _to_json(state, arrays, f"the state of {kind}")])
    return states


def set_callback_states(
    callbacks: Sequence[Any], states: Sequence[Any], arrays: Mapping[str, np.ndarray]
) -> None:
    """Let callbacks remember what others of their kinds have left.

    Several of one kind are told apart by their order.

    Args:
        callbacks: The callbacks; one for which there is nothing begins anew.
        states: As `callback_states` returned them.
        arrays: What arrays there were.
    """
    left = list(states)
    for callback in map(innermost, callbacks):
        kind = type(callback).__name__
        found = next((one for one in left if one[0] == kind), None)
        if found is not None:
            left.remove(found)
            _set(callback, _from_json(found[1], arrays))


def _get(callback: Any) -> Any:
    """Return what a callback remembers, None if that is nothing."""
    if hasattr(callback, "get_state") and hasattr(callback, "set_state"):
        return callback.get_state()
    return state_of_callback(callback)


def _set(callback: Any, state: Any) -> None:
    """Let a callback remember something."""
    if hasattr(callback, "set_state"):
        callback.set_state(state)
    else:
        set_state_of_callback(callback, state)


def _to_json(value: Any, arrays: dict[str, np.ndarray], where: str) -> Any:
    """Turn a value into what JSON can hold, its arrays put aside."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    what = type(value).__name__
    if isinstance(value, dict):
        others = [type(key).__name__ for key in value if not isinstance(key, str)]
        if not others:
            return {key: _to_json(value[key], arrays, where) for key in value}
        what = f"a key of type {others[0]}"
    if isinstance(value, list | tuple):
        return [_to_json(one, arrays, where) for one in value]
    if isinstance(value, np.ndarray | np.generic) or tf.is_tensor(value):
        # A copy: it is written while the training goes on.
        array = np.array(value)
        if not array.dtype.hasobject:
            name = f"{where} {len(arrays)}"
            arrays[name] = of_numpy(array)
            return {_ARRAY: [name, array.dtype.name]}
    raise TypeError(
        f"What a callback remembers must be numbers, strings, arrays, or lists and "
        f"dictionaries of those. Received: {what} in {where}. Change what its "
        "get_state() returns."
    )


def _from_json(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Undo `_to_json`."""
    if isinstance(value, dict):
        if [*value] == [_ARRAY]:
            name, dtype = value[_ARRAY]
            return of_type(arrays[name], dtype)
        return {key: _from_json(value[key], arrays) for key in value}
    if isinstance(value, list):
        return [_from_json(one, arrays) for one in value]
    return value
