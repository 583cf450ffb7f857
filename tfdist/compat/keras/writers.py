"""Callbacks of Keras that write or send: only the chief's do."""

import sys
from typing import Any

import keras

from tfdist.compat.keras.hooks import KerasHooks

# ModelCheckpoint is not among them: it saves models, which only the chief does anyway,
# and the best value so far that it keeps is that of all ranks.
_NAMES = (
    "BackupAndRestore",
    "CSVLogger",
    "OrbaxCheckpoint",
    "RemoteMonitor",
    "TensorBoard",
)
# Older ones lack some of them.
_WRITERS = tuple(
    getattr(keras.callbacks, name) for name in _NAMES if hasattr(keras.callbacks, name)
)
# Of which the chief has said so.
_SAID: set[str] = set()


def of_this_rank(callbacks: list[Any], hooks: KerasHooks) -> list[Any]:
    """Return the callbacks that a rank is to have, of those that all were given.

    Those that write are left to the chief, which says so once. What the chief restores,
    all ranks get from it. Kinds of a user's own stay: nobody here knows what else they
    do.

    Args:
        callbacks: What `fit` was given.
        hooks: Those of the strategy of the model.
    """
    writers = [one for one in callbacks if type(one) in _WRITERS]
    if hooks.rank > 0:
        return [one for one in callbacks if one not in writers]
    new = sorted({type(one).__name__ for one in writers} - _SAID)
    if new:
        _SAID.update(new)
        print(f"tfdist: only the chief has {', '.join(new)}.", file=sys.stderr)
    return callbacks
