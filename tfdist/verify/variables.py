"""Variables of a step: their names and values."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat.owned_variables import owner_of
from tfdist.verify.recording import Entry

_SHORT_FLOATS = (tf.float16, tf.bfloat16)


class Names:
    """Unique names of variables, assigned at first use."""

    def __init__(self) -> None:
        # Keeps the variables alive, so that no other gets the id of one.
        self._names: dict[int, tuple[Any, str]] = {}
        self._taken: dict[str, int] = {}

    def of(self, variable: Any, name: str | None = None) -> str:
        """Return the unique name of a variable, derived from `name` or its path."""
        known = self._names.get(id(variable))
        if known is not None:
            return known[1]
        name = name or path_of(variable)
        count = self._taken[name] = self._taken.get(name, 0) + 1
        unique = name if count == 1 else f"{name}#{count}"
        self._names[id(variable)] = (variable, unique)
        return unique


def path_of(variable: Any) -> str:
    """Return the name that Keras or TensorFlow gives to a variable."""
    return str(getattr(variable, "path", None) or variable.name)


def entries_of(
    model: Any, layers: Sequence[Any], optimizers: Sequence[Any], applied: Sequence[Any]
) -> Iterator[tuple[str, Entry, Any]]:
    """Yield each variable of a step once, with its path and its entry."""
    # `model` is None in a custom loop; the optimizers update the variables `applied`.
    seen: set[int] = set()
    groups: list[tuple[str, Sequence[Any]]] = []
    if model is not None:
        groups.append(("metrics", model.metrics_variables))
        if model.optimizer is not None:
            groups.append(("optimizer", model.optimizer.variables))
    groups += [("optimizer", optimizer.variables) for optimizer in optimizers]
    groups.append(("weights", applied))
    for owner in [*([] if model is None else [model]), *layers]:
        groups.append(("weights", owner.trainable_variables))
        groups.append(("state", owner.variables))
    for kind, variables in groups:
        for variable in variables:
            if id(variable) in seen or not _is_comparable(variable):
                continue
            seen.add(id(variable))
            aggregation = str(getattr(variable, "aggregation", "none"))
            dtype = tf.as_dtype(variable.dtype).name
            yield path_of(variable), Entry(kind, dtype, aggregation), variable


def to_tensor(value: Any) -> Any:
    """Return a dense tensor of a dtype that NumPy has."""
    tensor = tf.convert_to_tensor(value)
    short = tensor.dtype in _SHORT_FLOATS
    return tf.cast(tensor, tf.float32) if short else tensor


def to_array(variable: Any) -> Any:
    """Return the current value of a variable."""
    return np.array(to_tensor(variable))


def _is_comparable(variable: Any) -> bool:
    """Return whether a variable holds numbers that should agree on all ranks."""
    if owner_of(variable) is not None:
        return False
    dtype = tf.as_dtype(variable.dtype)
    is_number = dtype.is_floating or dtype.is_integer or dtype.is_bool
    # A gradient accumulator holds each rank's own part of a sum.
    return is_number and "gradient_accumulator" not in path_of(variable)
