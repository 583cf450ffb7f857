import warnings
from functools import partial
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives.single import SingleCollective
from tfdist.compat.keras.hooks import GradientPlan
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


def compiled(*layers, optimizer="sgd"):
    model = keras.Sequential([keras.Input((2,)), *layers, keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def shard(data, own, rows, *stand_in):
    own, rows = (tf.constant(n, tf.int64) for n in (own, rows))
    return Shard(data, rows, own, tuple(tf.constant(flag) for flag in stand_in))


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


def test_what_a_graph_makes_is_made_equal_after_the_call_that_traces_it(on_ranks):
    """Its variables have no values yet while the graph is traced."""

    def run(collective):
        hooks, model, made = hooks_on(collective), compiled(), []

        def call(data):
            if not made:
                made.append(tf.Variable([1.0, data]))
                hooks.created.add(made[0])
            return made[0] + 1.0

        @tf.function(autograph=False)
        def step(x):
            return hooks.run_step(call, shard(x, 1, 2))

        for _ in range(2):
            x = tf.constant(collective.rank + 2.0)
            hooks.run_function(model, "train_step", partial(step, x), is_joint=True)
        sent = collective.calls.count("broadcast variables of the first step")
        return made[0].numpy().tolist(), sent

    assert on_ranks(2, run) == [([1.0, 2.0], 1)] * 2


# Whose variables a fit starts with.


def test_a_fit_starts_with_the_variables_of_the_rank_it_names(on_ranks):
    def run(collective):
        hooks, model = hooks_on(collective), compiled()
        model.layers[-1].bias.assign([collective.rank + 1.0])
        with hooks.fitting(model, 1):
            hooks.build(model, is_single_step=False)
            started = model.layers[-1].bias.numpy().tolist()
            # What is restored later, rank 0 has restored.
            model.layers[-1].bias.assign([collective.rank + 3.0])
            hooks.synchronize(model)
        return started, model.layers[-1].bias.numpy().tolist()

    assert on_ranks(2, run) == [([2.0], [3.0])] * 2


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


def test_state_that_differs_is_averaged_when_ranks_synchronize(on_ranks):
    """Steps that accumulate gradients leave what they assign different."""

    def run(collective):
        norm = keras.layers.BatchNormalization(momentum=0.5)
        accumulating = keras.optimizers.SGD(gradient_accumulation_steps=2)
        model = compiled(norm, optimizer=accumulating)
        x = np.full((4, 2), 8.0 * (collective.rank + 1), "float32")
        hooks = hooks_on(collective)

        def assign(data):
            step = hooks.step
            for variable in norm.non_trainable_variables:
                variable.assign(data[0])
                hooks.note_assigned(variable)
            return step.share()

        run = partial(hooks.run_step, assign, shard(x, 4, 8))
        hooks.run_function(model, "train_step", run, is_joint=True)
        mine = norm.moving_mean.numpy().tolist()
        # As at the start of a predict in the midst of an epoch.
        hooks.synchronize(model)
        return mine, norm.moving_mean.numpy().tolist()

    assert on_ranks(2, run) == [([8.0, 8.0], [12.0, 12.0]), ([16.0] * 2, [12.0] * 2)]


def model_of():
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    return model


def run_step(hooks, model, call, data):
    """Run a step within a call of Keras that all ranks make."""
    hooks._call = (model, "train_step", True)
    try:
        return hooks.run_step(call, data)
    finally:
        hooks._call = None


def sums(hooks, *gradients):
    """Prepare gradients and reduce them, as an optimizer does."""
    variables = [SimpleNamespace(name=f"v{i}") for i in range(len(gradients))]
    return hooks.reduce_gradients(hooks.prepare_gradients(gradients, variables))


def on_shards(on_ranks, act, *owns):
    """Run `act(hooks, model)` as a step of a model, on the shards of all ranks."""

    def run(collective):
        hooks, model = hooks_on(collective), model_of()
        own = owns[collective.rank]
        stand_in = [own == 0] if 0 in owns else []
        return run_step(
            hooks,
            model,
            lambda data: act(hooks, model),
            shard(np.ones((max(own, 1), 2), "float32"), own, sum(owns), *stand_in),
        )

    return on_ranks(len(owns), run)


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
        hooks.run_step(len, shard(np.ones((1, 2)), 1, 1))


def test_a_stand_in_gets_the_statistics_of_the_others(on_ranks):
    def act(hooks, model):
        norm = model.layers[0]
        value = [3.0, float("nan")][hooks._collective.rank]
        norm.moving_mean.assign([value, value])
        hooks.note_assigned(norm.moving_mean)
        sums(hooks, tf.constant([value]))
        return norm

    for norm in on_shards(on_ranks, act, 2, 0):
        assert norm.moving_mean.numpy().tolist() == [3.0, 3.0]
        assert norm.moving_variance.numpy().tolist() == [1.0, 1.0]


# Gradients.


def test_ranks_agree_on_state_once_in_graphs_and_in_every_eager_step(on_ranks):
    def run(collective):
        hooks, model = hooks_on(collective), model_of()
        data = shard(np.ones((1, 2), "float32"), 1, 1)

        def call(data):
            hooks.note_assigned(model.layers[0].moving_mean)
            sums(hooks, tf.constant(1.0))
            return 0.0

        def step():
            return run_step(hooks, model, call, data)

        counts = []
        for one in (tf.function(step), tf.function(step), step, step):
            one()
            counts.append(collective.calls.count("exchange state of layers"))
        return counts

    assert on_ranks(1, run) == [[1, 1, 2, 3]]


def test_state_does_not_travel_from_a_branch(on_ranks):
    def run(collective):
        hooks, model = hooks_on(collective), model_of()

        def call(data):
            hooks.note_assigned(model.layers[0].moving_mean)

            def branch():
                return hooks.reduce_gradients(GradientPlan([tf.constant(3.0)]))[0]

            total = tf.cond(data > 0.0, branch, lambda: 0.0)
            (state,) = hooks.step.state()
            assert state is model.layers[0].moving_mean
            return total

        step = tf.function(lambda x: run_step(hooks, model, call, shard(x, 1, 1)))
        total = step(tf.constant(1.0))
        exchanged = [call for call in collective.calls if "exchange" in call]
        return float(total), exchanged

    # It waits for the end of the epoch, as what is accumulated does.
    assert on_ranks(1, run) == [(3.0, [])]


@pytest.mark.parametrize("jit_compile", [True, False])
def test_xla_compiles_a_step_that_wants_it_and_no_eager_one(jit_compile):
    hooks, model = hooks_on(SingleCollective()), model_of()
    model.compile("sgd", "mse", jit_compile=jit_compile)

    def run():
        data = shard(None, 1, 1)
        return run_step(hooks, model, lambda data: tf.constant(1.0, name="one"), data)

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
