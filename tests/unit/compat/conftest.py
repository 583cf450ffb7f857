"""Rank 0 of two, whose peer is not there."""

import pytest
import tensorflow as tf

from tfdist.collectives.single import SingleCollective
from tfdist.compat.keras.install import install
from tfdist.gradients.reducer import GradientReducer
from tfdist.sharding.owners import WeightOwners
from tfdist.strategies.base import StepRunner
from tfdist.strategies.process_replica import ProcessReplicaExtended


class FirstOfTwo(SingleCollective):
    """Rank 0 of two, whose peer has the same gradients and updates nothing."""

    size = 2

    def exchange(self, name, value, *, joint=True):
        return [value, value]

    def broadcast(self, tensors, root_rank=0, *, name):
        return tensors


@pytest.fixture
def first_of_two():
    """Return what makes the strategy of rank 0 of two, by options of `WeightOwners`."""
    install(is_alone=True)

    def make(**options):
        collective = FirstOfTwo()
        strategy = StepRunner.__new__(StepRunner)
        reducer = GradientReducer(collective)
        extended = ProcessReplicaExtended(strategy, collective, reducer)
        forget = extended.process_hooks.created.forget
        extended.owners = WeightOwners(collective, forget, **options)
        tf.distribute.Strategy.__init__(strategy, extended)
        return strategy

    return make
