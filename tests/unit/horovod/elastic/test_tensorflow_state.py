"""The state of plain variables."""

import keras
import pytest
import tensorflow as tf

pytestmark = pytest.mark.requires("horovodrun")


def test_restore_goes_back_to_the_last_commit(hvd):
    ours, theirs = keras.Variable([1.0, 2.0]), tf.Variable(3)
    state = hvd.elastic.TensorFlowState([ours, theirs], epoch=0)
    ours.assign([4.0, 5.0])
    theirs.assign(6)
    state.epoch = 1
    state.commit()
    ours.assign([0.0, 0.0])
    theirs.assign(0)
    state.epoch = 9
    state.restore()

    assert ours.numpy().tolist() == [4.0, 5.0]
    assert (theirs.numpy(), state.epoch) == (6, 1)


def test_a_session_is_refused(hvd):
    with pytest.raises(
        ValueError,
        match=r"^session must be None, because TensorFlow 2 has none\. "
        r"Received: session='session'\. Leave it out\.$",
    ):
        hvd.elastic.TensorFlowState([tf.Variable(1.0)], session="session")


def test_no_variables_are_refused(hvd):
    with pytest.raises(
        ValueError,
        match=r"^variables must hold the variables of the state, because TensorFlow 2 "
        r"does not list them all\. Received: variables=None\. For a model of Keras",
    ):
        hvd.elastic.TensorFlowState()
