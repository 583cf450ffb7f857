import pytest
import tensorflow as tf

from tfdist.data.sharding import Shard
from tfdist.training.step import LoopStep, Step
from tfdist.training.step_numbers import StepNumbers


class Joint(Step):
    is_joint = True


def counts(place, make=lambda: Joint(Shard(None, 1, 1, ()), None, None)):
    """Return in which of its runs a step has a number, by what runs at a place."""
    numbers = StepNumbers(2)
    sent = []

    @tf.function
    def run():
        step = make()
        place(lambda: sent.append(len(numbers.of(step, []))) or tf.constant(0))
        numbers.ended(step)

    run()
    run()
    return sent[-1], int(numbers._count)


def in_cond(call):
    tf.cond(tf.random.uniform([]) < 0.5, call, lambda: tf.constant(1))


def in_loop(call):
    tf.while_loop(lambda i: i < 1, lambda i: (i + 1 + call(),), [0])


def in_function(call):
    tf.function(call)()


def in_step(call):
    call()


@pytest.mark.parametrize(
    ("place", "found"),
    [
        (in_step, (0, 0)),
        (in_function, (0, 0)),
        (in_cond, (1, 2)),
        (in_loop, (1, 2)),
        (lambda call: in_loop(lambda: (in_cond(call), 0)[1]), (1, 2)),
    ],
)
@pytest.mark.parametrize("make", [None, lambda: LoopStep(())])
def test_only_a_branch_or_loop_costs_a_number(place, found, make):
    assert counts(place, *filter(None, [make])) == found


@pytest.mark.parametrize("count", [2**23 - 1, 2**23, 2**40 + 1])
def test_numbers_of_many_steps_add_up_exactly(count):
    numbers = StepNumbers(2)
    numbers._count.assign(count)
    step = Joint(Shard(None, 1, 1, ()), None, None)
    assert step.is_numbered  # Eagerly.

    (own,) = numbers.of(step, [tf.zeros(1)])
    numbers.ended(step)
    (next_own,) = numbers.of(step, [tf.zeros(1)])

    assert own.dtype == tf.float32
    numbers.checked([], next_own, next_own + next_own)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Received: gradients of"):
        numbers.checked([], next_own, own + next_own)
