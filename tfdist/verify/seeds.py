"""The states of all random numbers that have a seed."""

import hashlib
import random
from typing import Any

import numpy as np

from tfdist.compat.tensorflow import global_seed


def current_seeds() -> list[str]:
    """Return short forms of the states in this process.

    Returns:
        TensorFlow's seed, and digests of the states of Python's and NumPy's.
    """
    state: Any = np.random.get_state()
    numpy_state = repr(state[1:3])
    return [str(global_seed()), *map(_short, (repr(random.getstate()), numpy_state))]


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
