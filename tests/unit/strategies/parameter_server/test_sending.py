import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.batches import spec_of
from tfdist.strategies.parameter_server.sending import give_back, work_of
from tfdist.strategies.parameter_server.step import PureStep
from tfdist.strategies.parameter_server.update import Update

X = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")
Y = X[:, :1] - 2 * X[:, 1:2]


@pytest.fixture
def model():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def batch(start, stop):
    return tf.constant(X[start:stop]), tf.constant(Y[start:stop])


def update_of(strategy, model):
    spec = spec_of(batch(0, 2))
    return Update(strategy, PureStep(strategy, model, model.train_step, spec))


def work_of_two(update):
    return work_of(update, [batch(0, 2), batch(2, 6)], [[2, 2, 0], [4, 4, 1]], 7)


def test_work_leaves_each_step_in_a_slot_of_its_own(strategy, model):
    update = update_of(strategy, model)
    work = work_of_two(update)
    slots = work.prepare()()
    taken = [update.step.layout.read([v.handle for v in slot]) for slot in slots]

    assert [int(one.rows) for one in taken] == [2, 4]
    assert (work.tag.first, work.tag.steps, work.tag.update) == (7, 2, update)


def test_work_that_is_prepared_again_has_other_slots(strategy, model):
    work = work_of_two(update_of(strategy, model))
    first, again = work.prepare()(), work.prepare()()

    assert not {id(v) for slot in first for v in slot} & {
        id(v) for slot in again for v in slot
    }


def test_slots_of_work_that_is_applied_are_used_again(strategy, model):
    update = update_of(strategy, model)
    work = work_of_two(update)
    work.result = work.prepare()()
    give_back(update, work)
    slot = update.take_slot()

    assert any(slot is one for one in work.result)


def test_slots_of_work_that_comes_too_late_are_used_again(strategy, model):
    update = update_of(strategy, model)
    work = work_of_two(update)
    slots = work.prepare()()
    work.too_late(slots)
    slot = update.take_slot()

    assert any(slot is one for one in slots)
