"""The states of random numbers, in short."""

import random

import keras
import numpy as np

from tfdist.verify.seeds import current_seeds


def test_the_same_seed_gives_the_same_states():
    keras.utils.set_random_seed(3)
    first = current_seeds()
    keras.utils.set_random_seed(3)

    assert current_seeds() == first
    assert first[0] == "3"


def test_each_generator_shows():
    keras.utils.set_random_seed(3)
    first = current_seeds()
    random.random()
    second = current_seeds()
    np.random.random()
    third = current_seeds()

    assert [a == b for a, b in zip(first, second, strict=True)] == [True, False, True]
    assert [a == b for a, b in zip(second, third, strict=True)] == [True, True, False]
