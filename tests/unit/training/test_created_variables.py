import tensorflow as tf

from tfdist.collectives import SingleCollective
from tfdist.training.created_variables import CreatedVariables


def made_on(on_ranks, act):
    """Make a variable of its own value on each of two ranks; return what they have."""

    def run(collective):
        created = CreatedVariables(collective)
        variable = tf.Variable(float(collective.rank + 1))
        act(created, variable)
        return float(variable)

    return on_ranks(2, run)


def test_what_was_made_starts_with_rank_0_s_value(on_ranks):
    def act(created, variable):
        created.add(variable)
        created.start_equal()

    assert made_on(on_ranks, act) == [1.0, 1.0]


def test_once_equal_it_is_left_alone(on_ranks):
    def act(created, variable):
        created.add(variable)
        created.start_equal()
        variable.assign(float(variable) + created._collective.rank)
        created.start_equal()

    assert made_on(on_ranks, act) == [1.0, 2.0]


def test_a_step_starts_only_what_it_has_made(on_ranks):
    def act(created, variable):
        created.add(variable)
        created.start_equal_since(created.count)

    assert made_on(on_ranks, act) == [1.0, 2.0]

    def act_since(created, variable):
        known = created.count
        created.add(variable)
        created.start_equal_since(known)

    assert made_on(on_ranks, act_since) == [1.0, 1.0]


def test_a_process_alone_asks_nobody_and_garbage_is_forgotten():
    created = CreatedVariables(SingleCollective())
    variable = tf.Variable(1.0)
    created.add(variable)
    created.start_equal()

    assert created.count == 1
    del variable
    created.start_equal_since(0)
    created.start_late_equal()
