from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tfdist.data.sharding import Shard
from tfdist.strategies import AllReduceStrategy
from tfdist.training.step import Step, WeighingReplicaContext


def shard(own, rows, *stand_in):
    own, rows = (tf.constant(n, tf.int64) for n in (own, rows))
    return Shard(None, rows, own, tuple(tf.constant(flag) for flag in stand_in))


def step(own, rows, collective=None, *, stand_in=()):
    return Step(shard(own, rows, *stand_in), None, collective)


def steps_of(*owns, empty=()):
    """Return a function that makes the step of a rank, which has so many rows."""

    def make(collective):
        rank = collective.rank
        stand_in = (rank in empty,) if empty else ()
        return step(owns[rank], sum(owns), collective, stand_in=stand_in)

    return make


# Among them is a batch that a small float type could not count.
@pytest.mark.parametrize(
    ("own", "rows", "share"),
    [(1, 4, 0.25), (50_001, 100_002, 0.5), (0, 3, 0), (0, 0, 0)],
)
def test_the_share_is_a_part_of_the_rows(own, rows, share):
    found = step(own, rows).share()

    assert float(found) == share
    assert found.dtype == tf.float64


# Sums.


@pytest.mark.parametrize("theirs", [7.0, float("nan"), float("inf")])
def test_a_stand_in_adds_nothing_and_gets_the_sum(on_ranks, theirs):
    make = steps_of(2, 0, empty=[1])

    found = on_ranks(2, lambda c: float(make(c).sum([5.0, theirs][c.rank], "x")))

    assert found == [5.0, 5.0]


def test_nothing_flows_back_through_a_sum(on_ranks):
    def gradient(collective):
        x = tf.Variable(3.0)
        with tf.GradientTape() as tape:
            y = x * steps_of(1, 1)(collective).sum(x, "x")
        return float(tape.gradient(y, x))

    assert on_ranks(2, gradient) == [6.0, 6.0]


# What layers reduce, and its gradient: rank 0 has one row of four, rank 1 has three.

X = [2.0, 6.0]
UPSTREAM = [10.0, 20.0]


def reduced(on_ranks, make, *, is_mean, xs=X):
    """Return each rank's result and the gradient of what it passed in."""

    def reduce(collective):
        x = tf.Variable(xs[collective.rank])
        with tf.GradientTape() as tape:
            (y,) = make(collective).all_reduce([x.read_value()], is_mean=is_mean)
            z = y * UPSTREAM[collective.rank]
        return float(y), float(tape.gradient(z, x))

    return on_ranks(2, reduce)


def test_a_sum_adds_up_and_its_gradient_is_divided_by_the_share(on_ranks):
    (one, first), (other, second) = reduced(on_ranks, steps_of(1, 3), is_mean=False)

    assert one == other == 8.0
    # Of the loss 1/4 * 10 * y + 3/4 * 20 * y by y: 17.5. It reaches each x whole;
    # multiplied by the shares 1/4 and 3/4 after the backward pass it is that again.
    assert first == 17.5 * 4
    assert second == pytest.approx(17.5 * 4 / 3)


@pytest.mark.parametrize("nothing", [7.0, float("nan")])
@pytest.mark.parametrize("is_mean", [True, False])
def test_a_stand_in_gets_the_statistics_of_the_others(on_ranks, is_mean, nothing):
    make = steps_of(4, 0, empty=[1])

    found = reduced(on_ranks, make, is_mean=is_mean, xs=[2.0, nothing])

    # The gradient of rank 1's own loss counts for nothing, so that 10 is left.
    assert found[0] == (2.0, 10.0)
    assert found[1][0] == 2.0
    assert found[1][1] * 0.0 == 0.0


def gathered(on_ranks, make, xs, axis=0):
    """Return each rank's rows of all ranks, and the gradient of what it passed in."""

    def gather(collective):
        x = tf.Variable(xs[collective.rank])
        with tf.GradientTape() as tape:
            rows = make(collective).all_gather(x.read_value(), axis)
            z = tf.reduce_sum(rows * [10.0, 20.0, 30.0, 40.0]) * (collective.rank + 1)
        return rows.numpy().tolist(), tape.gradient(z, x).numpy().tolist()

    return on_ranks(2, gather)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_gradient_of_gathered_rows_is_divided_by_the_share(on_ranks, axis):
    xs = [[1.0], [2.0, 3.0, 4.0]]
    xs = xs if axis == 0 else [[each] for each in xs]

    (one, first), (other, second) = gathered(on_ranks, steps_of(1, 3), xs, axis)

    rows = [1.0, 2.0, 3.0, 4.0]
    assert one == other == (rows if axis == 0 else [rows])
    # Of the loss 1/4 * z + 3/4 * 2 * z by the rows of z: 1.75 times their factors.
    flat = np.array([*np.ravel(first), *np.ravel(second)])
    shares = np.array([1 / 4, 3 / 4, 3 / 4, 3 / 4])
    np.testing.assert_allclose(flat * shares, [17.5, 35.0, 52.5, 70.0])


def test_a_stand_in_gathers_no_rows_of_its_own(on_ranks):
    xs = [[1.0, 2.0, 3.0, 4.0], [float("nan")]]

    (one, first), (other, second) = gathered(on_ranks, steps_of(4, 0, empty=[1]), xs)

    assert one == other == xs[0]
    assert first == [10.0, 20.0, 30.0, 40.0]
    assert second == [0.0]


Op = tf.distribute.ReduceOp


class NotingStep:
    """A step that notes what it is to reduce, and doubles it."""

    def __init__(self, is_joint=True):
        self.is_joint = is_joint
        self.asked = []

    def all_reduce(self, values, *, is_mean):
        self.asked.append(is_mean)
        return [value * 2 for value in values]


def reduced_in(step, operation, value):
    """All-reduce a value in the replica of a process that makes a step of Keras."""
    hooks = SimpleNamespace(rank=0, step=step)
    context = WeighingReplicaContext(AllReduceStrategy(), 0, hooks)
    with context:
        return context.all_reduce(operation, value)


def test_a_structure_is_reduced_at_once_and_stays_what_it_is():
    step = NotingStep()

    found = reduced_in(step, Op.SUM, {"a": tf.constant(1.0), "b": [2.0, tf.ones([2])]})

    assert float(found["a"]) == 2.0
    assert float(found["b"][0]) == 4.0
    assert found["b"][1].numpy().tolist() == [2.0, 2.0]
    assert len(step.asked) == 1


def slices():
    return tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))


@pytest.mark.parametrize("make", [lambda: tf.constant(3), slices])
def test_integers_and_slices_are_left_to_tensorflow(make):
    step, value = NotingStep(), make()

    found = reduced_in(step, Op.SUM, value)

    assert type(found) is type(value)
    assert step.asked == []
