"""Keras's own source of seeds, where nobody has given one."""

from typing import Any

from keras.src.backend.common.global_state import get_global_attribute
from keras.src.random.seed_generator import global_seed_generator

# Where Keras keeps it.
_NAME = "global_seed_generator"


def global_seed_state() -> list[int] | None:
    """Return the state of Keras's global seed generator, None if it was never used."""
    generator: Any = get_global_attribute(_NAME)
    if generator is None:
        return None
    state: list[int] = generator.state.numpy().tolist()
    return state


def set_global_seed_state(state: list[int]) -> None:
    """Set the state of Keras's global seed generator.

    Args:
        state: As `global_seed_state` returned it.
    """
    global_seed_generator().state.assign(state)
