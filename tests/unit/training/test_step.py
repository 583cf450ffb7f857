from types import SimpleNamespace

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


def slices():
    return tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))


@pytest.mark.parametrize("make", [lambda: tf.constant(3), slices])
def test_integers_and_slices_are_left_to_tensorflow(make):
    step = SimpleNamespace(is_joint=True, all_reduce=pytest.fail)
    hooks, value = SimpleNamespace(rank=0, step=step), make()
    context = WeighingReplicaContext(AllReduceStrategy(), 0, hooks)

    with context:
        found = context.all_reduce(tf.distribute.ReduceOp.SUM, value)

    assert type(found) is type(value)
