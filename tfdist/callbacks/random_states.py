"""The states of the generators of random numbers of a process."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfdist.compat.keras.random_states import global_seed_state, set_global_seed_state


def random_states() -> dict[str, Any]:
    """Return the states of Python's, NumPy's and Keras's generators, as JSON holds."""
    version, numbers, gauss = random.getstate()
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": [version, numbers, gauss],
        "numpy": [name, np.asarray(keys).tolist(), *rest],
        "keras": global_seed_state(),
    }


def set_random_states(states: Mapping[str, Any]) -> None:
    """Set the states.

    Args:
        states: As `random_states` returned them.
    """
    # Keras's may be made here, which draws from Python's.
    if states["keras"] is not None:
        set_global_seed_state(states["keras"])
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), *rest))
