import random

import keras
import numpy as np
import pytest

from tfdist.collectives.single import SingleCollective
from tfdist.compat.keras.positions import global_seed_state
from tfdist.training.state import agree_on_seeds


class Rank(SingleCollective):
    """The second of two ranks; `change` makes the first one's values of its own."""

    def __init__(self, change):
        self._change = change

    def exchange(self, name, value, *, joint=True):
        assert name == "seeds"
        return [self._change(value), value]


def draw():
    return random.random(), float(np.random.rand())


@pytest.fixture(autouse=True)
def generators():
    """Put back the states of the generators."""
    states = random.getstate(), np.random.get_state()
    keras.utils.clear_session()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    keras.utils.clear_session()


def test_only_generators_that_differ_are_seeded():
    random.seed(1)
    np.random.seed(2)
    mine = random.random()
    random.seed(1)

    def numpy_differs(given):
        python, numpy, of_keras = given[2]
        return [5, False, [python, numpy + 1, of_keras]]

    agree_on_seeds(Rank(numpy_differs))

    assert random.random() == mine
    seeded = np.random.RandomState(5)
    assert np.random.rand() == seeded.rand()
    assert global_seed_state() is None


@pytest.mark.parametrize("is_here", [False, True])
def test_what_keras_has_seeded_is_left_alone(is_here):
    if is_here:
        keras.utils.set_random_seed(3)
    random.seed(3)
    np.random.seed(3)
    mine = draw()
    random.seed(3)
    np.random.seed(3)

    agree_on_seeds(Rank(lambda given: [5, not is_here, [s + 1 for s in given[2]]]))

    assert draw() == mine
