from types import SimpleNamespace

import tensorflow as tf

from tfdist.callbacks.peers import collective_of
from tfdist.collectives import SingleCollective


def test_the_ranks_are_those_of_the_strategy():
    collective = object()
    strategy = SimpleNamespace(collective=collective)

    assert collective_of(SimpleNamespace(distribute_strategy=strategy)) is collective


def test_under_another_strategy_this_process_is_alone():
    model = SimpleNamespace(distribute_strategy=tf.distribute.get_strategy())

    assert isinstance(collective_of(model), SingleCollective)
