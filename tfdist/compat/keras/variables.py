"""Variables: what a step assigns is known, and how large one is that is made."""

from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras.hooks import current_hooks

_assign = keras.Variable.assign
_initialize_with_initializer = keras.Variable._initialize_with_initializer


def patch() -> None:
    """Let the strategy know of assignments, and of sizes."""
    keras.Variable.assign = _assign_and_note
    keras.Variable._initialize_with_initializer = _initialize_where_it_fits


def _assign_and_note(self: Any, value: Any) -> Any:
    """Assign as Keras does, and note it if this is within a step."""
    hooks = current_hooks()
    if hooks is not None:
        hooks.note_assigned(self)
    return _assign(self, value)


def _initialize_where_it_fits(self: Any, initializer: Any) -> None:
    """Make the variable as Keras does; parameter servers choose its place by size."""
    making = getattr(tf.distribute.get_strategy().extended, "making", None)
    if making is None:
        _initialize_with_initializer(self, initializer)
        return
    size_bytes = (
        tf.TensorShape(self._shape).num_elements() * tf.as_dtype(self._dtype).size
    )
    with making(self.path, size_bytes):
        _initialize_with_initializer(self, initializer)
