"""Variables: what a step assigns is known, so that ranks can agree on it."""

from typing import Any

import keras

from tfdist.compat.keras.hooks import current_hooks

_assign = keras.Variable.assign


def patch() -> None:
    """Let the strategy know of assignments."""
    keras.Variable.assign = _assign_and_note


def _assign_and_note(self: Any, value: Any) -> Any:
    """Assign as Keras does, and note it if this is within a step."""
    hooks = current_hooks()
    if hooks is not None:
        hooks.note_assigned(self)
    return _assign(self, value)
