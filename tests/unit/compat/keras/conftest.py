"""Strategies with the hooks of one rank, in a process without any other."""

from contextlib import contextmanager, nullcontext

import pytest
import tensorflow as tf
from tensorflow.python.distribute.one_device_strategy import OneDeviceExtended

from tfdist.collectives.single import SingleCollective
from tfdist.compat.keras.install import install
from tfdist.compat.parameter_server import PlacesVariables
from tfdist.gradients.reducer import GradientReducer
from tfdist.strategies.base import StepRunner
from tfdist.strategies.process_replica import ProcessReplicaExtended


class RankHooks:
    """One rank in a step, with its share of the rows and what others add to a sum."""

    rank, is_alone, has_peers = 0, False, True
    updates_once = are_reduced = False

    def __init__(self, share=1.0, theirs=0.0, in_step=True):
        self._share, self._theirs, self._in_step = share, theirs, in_step
        self.summed, self.assigned = [], []

    @property
    def step(self):
        return self if self._in_step else None

    def share(self):
        return tf.constant(self._share, tf.float64)

    def is_by_row(self, value):
        return value.shape != (1,)

    def as_traced(self, decision):
        return decision

    def sum(self, value, what):
        self.summed.append(float(value))
        return value + self._theirs

    def note_assigned(self, variable, value=None):
        self.assigned.append(variable)


@pytest.fixture
def rank():
    """Return a block in which Keras runs under a strategy with the hooks of a rank."""
    install(is_alone=True)

    @contextmanager
    def block(share=1.0, theirs=0.0, in_step=True, hooks=None):
        strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
        hooks = hooks or RankHooks(share, theirs, in_step)
        strategy.extended.keras_hooks = hooks
        with strategy.scope():
            yield hooks

    return block


class TwinCollective(SingleCollective):
    """The collective of two ranks that always have the same."""

    size, chief_writes = 2, True

    def __init__(self, rank, told):
        self._rank, self._told = rank, told
        self.exchanged, self.called = [], []

    @property
    def rank(self):
        return self._rank

    def all_reduce(self, tensors, reduction="sum", *, name):
        factor = 2 if reduction == "sum" else 1
        tensors = super().all_reduce(tensors, reduction, name=name)
        return [tensor * tf.cast(factor, tensor.dtype) for tensor in tensors]

    def all_gather(self, tensor, *, name):
        return tf.concat([tensor, tensor], 0)

    def exchange(self, name, value, *, joint=True):
        self.exchanged.append((name, value))
        return self._told[name](value) if name in self._told else [value, value]

    @property
    def control(self):
        control = super().control
        control.wait_for_chief = lambda what: self.chief_writes
        return control

    def call(self, what):
        self.called.append(what)
        return nullcontext()


class TwinStrategy(StepRunner):
    def __init__(self, collective):
        super().__init__(
            ProcessReplicaExtended(self, collective, GradientReducer(collective))
        )


@pytest.fixture
def twin():
    """Return a function that makes the strategy of a rank that has a twin.

    `told` says what all ranks give in exchange for this rank's value, by name.
    """
    install(is_alone=True)
    return lambda rank=0, **told: TwinStrategy(
        TwinCollective(rank, {name.replace("_", " "): by for name, by in told.items()})
    )


class Placing(PlacesVariables, OneDeviceExtended):
    """What a strategy is told of variables that it places; it cuts seven rows."""

    chief = "/device:CPU:0"

    def __init__(self, strategy):
        super().__init__(strategy, "/cpu:0")
        self.asked, self.made, self.shards = [], [], [1]

    def _use_merge_call(self):
        return False

    @contextmanager
    def making(self, path, size_bytes, beside=None):
        self.made.append((path.split("/")[-1], size_bytes, beside))
        yield

    def sizes_of_shards(self, path, shape, dtype):
        self.asked.append((path, shape.rank, dtype.name))
        return self.shards if shape[0] == 7 else [1]


@pytest.fixture
def placing():
    """Enter the scope of a strategy that places variables."""
    install(is_alone=True)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    placing = Placing(strategy)
    tf.distribute.Strategy.__init__(strategy, placing)
    with strategy.scope():
        yield placing
