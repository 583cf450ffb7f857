import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives.single import SingleCollective
from tfdist.data.sharding import Shard
from tfdist.gradients.reducer import GradientReducer
from tfdist.training.hooks import StrategyKerasHooks


class Noting(SingleCollective):
    """A process alone that notes what it would tell others."""

    def __init__(self):
        self.sent = []

    def exchange(self, name, value, *, joint=True):
        self.sent.append(name)
        return [value]

    def broadcast(self, tensors, root_rank=0, *, name):
        self.sent.append(name)
        return list(tensors)


def hooks_on(collective):
    return StrategyKerasHooks(collective, GradientReducer(collective))


def compiled(*layers):
    model = keras.Sequential([keras.Input((2,)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def shard(data):
    """Return the one row of a process alone."""
    one = tf.constant(1, tf.int64)
    return Shard(data, one, one, ())


# The start.


def test_every_fit_starts_from_equal_states_and_single_steps_do_once():
    collective, model = Noting(), compiled()
    hooks, sent = hooks_on(collective), []
    for is_single_step in (True, True, False, False, True):
        collective.sent.clear()
        hooks.build(model, is_single_step=is_single_step)
        sent.append("variables of the model" in collective.sent)

    assert sent == [True, False, True, True, False]


def test_layers_whose_state_cannot_be_split_are_refused_before_a_step():
    lstm = keras.layers.LSTM(2, stateful=True)
    model = keras.Sequential([keras.Input((3, 1), batch_size=4), lstm])
    model.compile("sgd", "mse")
    hooks = hooks_on(Noting())

    for begin in (
        lambda: hooks.build(model, is_single_step=False),
        lambda: hooks.predicting(model),
    ):
        with pytest.raises(ValueError, match=r"A stateful layer keeps a state for"):
            begin()


def test_the_chief_warns_once_of_what_depends_on_the_number_of_processes():
    model = compiled(keras.layers.BatchNormalization(name="norm"))
    hooks = hooks_on(Noting())

    model.trainable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hooks.build(model, is_single_step=False) is None
    model.trainable = True
    model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match=r"in norm\..*See docs/guarantees\.md\."):
        hooks.build(model, is_single_step=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hooks.build(model, is_single_step=False) is None


def test_a_cluster_that_comes_after_the_strategy_is_said(monkeypatch):
    hooks, model = hooks_on(Noting()), compiled()
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}}')

    message = "^TF_CONFIG was set after the strategy was made, which has not read it."
    with pytest.warns(UserWarning, match=message), hooks.fitting(model, 0):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with hooks.fitting(model, 0):
            assert hooks.callbacks_called(model, "epoch_begin") is None


# Calls that all ranks make together.


# Whose variables a fit starts with.


def test_ranks_that_name_different_ranks_are_told(on_ranks):
    def run(collective):
        hooks, model = hooks_on(collective), compiled()
        with hooks.fitting(model, collective.rank):
            hooks.build(model, is_single_step=False)

    with pytest.raises(
        RuntimeError,
        match=r"^The ranks are to start from the variables of different ranks\. "
        r"Received: root_rank=\[0, 1\], by rank\. Give the same BroadcastVariables",
    ):
        on_ranks(2, run)


# What callbacks restore.


@pytest.mark.parametrize(("who", "is_restored"), [([], False), ([1], True)])
def test_if_any_rank_restores_all_start_equal_again(on_ranks, who, is_restored):
    def run(collective):
        hooks, model, rank = hooks_on(collective), compiled(), collective.rank
        model.layers[-1].bias.assign([rank + 1.0])
        with hooks.fitting(model, 0):
            found = hooks.restored(model, rank + 5, restores=rank in who)
        return found, model.layers[-1].bias.numpy().tolist()

    wanted = [(5, [1.0]), (5, [1.0]) if is_restored else (6, [2.0])]
    assert on_ranks(2, run) == wanted


# State that ranks have apart.


# What a step is.


def test_a_step_outside_of_a_call_of_keras_is_refused():
    hooks = hooks_on(SingleCollective())

    assert not hooks.is_called
    with pytest.raises(
        RuntimeError,
        match=r"A step of fit, evaluate or predict must run in the function that Keras "
        r"makes for it\. Received: one of their batches, in another call of "
        r"strategy\.run\. Let a make_train_function, make_test_function or "
        r"make_predict_function of your own wrap what that of Keras makes\.",
    ):
        hooks.run_step(len, shard(np.ones((1, 2))))


@pytest.mark.parametrize("jit_compile", [True, False])
def test_xla_compiles_a_step_that_wants_it_and_no_eager_one(jit_compile):
    hooks, model = hooks_on(SingleCollective()), compiled()
    model.compile("sgd", "mse", jit_compile=jit_compile)
    # Within a call of Keras that all ranks make.
    hooks._call = (model, "train_step", True)

    def run():
        return hooks.run_step(lambda data: tf.constant(1.0, name="one"), shard(None))

    # TensorFlow refuses such a scope outside of a graph.
    assert float(run()) == 1.0
    graph = tf.function(run).get_concrete_function().graph
    attributes = graph.get_operation_by_name("one").node_def.attr
    assert attributes["_XlaCompile"].b == jit_compile
    assert attributes["_XlaSeparateCompiledGradients"].b == jit_compile


def test_a_fit_that_raises_leaves_no_mark_on_its_model():
    collective, model = Noting(), compiled()
    hooks = hooks_on(collective)
    with pytest.raises(ValueError, match="stop"), hooks.fitting(model, 0):
        raise ValueError("stop")

    assert hooks.restored(model, 3, restores=True) == 3
    assert collective.sent == []
