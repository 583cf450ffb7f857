"""Agreement of the ranks on random generators that the user has not seeded."""

import pickle
import random
import zlib

import numpy as np

from tfdist.collectives import Collective
from tfdist.compat.keras.positions import (
    global_seed_state,
    has_random_seed,
    set_global_seed_state,
)


def agree_on_seeds(collective: Collective) -> int:
    """Seed Python's, NumPy's and Keras's generators alike; return an agreed seed.

    Generators whose states are equal on all ranks stay as they are, and all do after
    `keras.utils.set_random_seed` on any rank.
    """
    drawn = random.SystemRandom().getrandbits(31)
    mine = [drawn, has_random_seed(), _states()]
    seeds, are_set, states = zip(*collective.exchange("seeds", mine), strict=True)
    seed: int = seeds[0]
    if any(are_set):
        return seed
    of_python, of_numpy, of_keras = (
        any(state != given[0] for state in given) for given in zip(*states, strict=True)
    )
    # Keras's first: creating its generator draws from Python's.
    if of_keras:
        set_global_seed_state([seed, 0])
    if of_python:
        random.seed(seed)
    if of_numpy:
        np.random.seed(seed)
    return seed


def _states() -> list[int]:
    """Return checksums of the states of Python's, NumPy's and Keras's generators."""
    states = (random.getstate(), np.random.get_state(), global_seed_state())
    return [zlib.crc32(pickle.dumps(state)) for state in states]
