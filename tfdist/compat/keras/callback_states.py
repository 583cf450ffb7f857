"""What Keras's callbacks remember from one epoch to the next."""

from typing import Any

import keras

# By the name of the kind: what it keeps from one epoch, or batch, to the next.
_KEPT = {
    "EarlyStopping": ("best", "best_epoch", "wait", "stopped_epoch", "best_weights"),
    "History": ("epoch", "history"),
    "ModelCheckpoint": (
        "best",
        "_batches_seen_since_last_saving",
        "_last_batch_seen",
    ),
    "ReduceLROnPlateau": ("best", "wait", "cooldown_counter"),
    "SwapEMAWeights": ("_ema_weights_in_model",),
}
# Older ones lack some of them.
_KINDS = {
    getattr(keras.callbacks, name): kept
    for name, kept in _KEPT.items()
    if hasattr(keras.callbacks, name)
}


def state_of_callback(callback: Any) -> dict[str, Any] | None:
    """Return what a callback of Keras remembers, None if that is nothing.

    Args:
        callback: Of one of Keras's kinds, or of one that inherits from it.
    """
    names = [
        n for kind, kept in _KINDS.items() if isinstance(callback, kind) for n in kept
    ]
    return {n: getattr(callback, n) for n in names if hasattr(callback, n)} or None


def set_state_of_callback(callback: Any, state: dict[str, Any]) -> None:
    """Let a callback of Keras remember something.

    Args:
        callback: The callback.
        state: As `state_of_callback` returned it.
    """
    for name, value in state.items():
        setattr(callback, name, value)
