import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives import SingleCollective
from tfdist.data.sharding import Shard
from tfdist.gradients import GradientReducer
from tfdist.mixed_precision import LossScaleOptimizer
from tfdist.training.decisions import Decisions
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


class Elsewhere(Noting):
    rank, size = 1, 2


def hooks_on(collective):
    return StrategyKerasHooks(collective, GradientReducer(collective))


def compiled(*layers, optimizer="sgd"):
    model = keras.Sequential([keras.Input((2,)), *layers, keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def test_it_is_the_rank_of_its_collective(on_ranks):
    def look(collective):
        hooks = hooks_on(collective)
        return hooks.rank, hooks.is_alone, hooks.in_step

    assert on_ranks(2, look) == [(0, False, False), (1, False, False)]
    assert hooks_on(SingleCollective()).is_alone


# The start.


def test_every_fit_starts_from_equal_states_and_single_steps_do_once():
    collective, model = Noting(), compiled()
    hooks, sent = hooks_on(collective), []
    for is_single_step in (True, True, False, False, True):
        collective.sent.clear()
        hooks.build(model, is_single_step=is_single_step)
        sent.append("variables of the model" in collective.sent)

    assert sent == [True, False, True, True, False]


def test_with_another_optimizer_single_steps_start_again():
    collective, model = Noting(), compiled()
    hooks = hooks_on(collective)
    hooks.build(model, is_single_step=True)
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    collective.sent.clear()

    hooks.build(model, is_single_step=True)

    assert "variables of the model" in collective.sent


def test_a_model_without_an_optimizer_starts_once_for_single_steps_too():
    collective, model = Noting(), compiled()
    model.optimizer = None
    hooks = hooks_on(collective)

    for _ in range(2):
        hooks.build(model, is_single_step=True)

    assert collective.sent.count("variables of the model") == 1


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
            assert not hooks.decisions(model)


@pytest.mark.filterwarnings("error")
def test_other_ranks_do_not_warn():
    model = compiled(keras.layers.BatchNormalization(name="norm"))
    hooks = hooks_on(Elsewhere())

    hooks.build(model, is_single_step=False)

    assert hooks.rank == 1


def test_a_model_that_is_not_built_cannot_predict():
    model = keras.Sequential([keras.layers.Dense(1)], name="lazy")

    with pytest.raises(
        ValueError,
        match=r"The model 'lazy' has no weights to predict with\. Received: predict on "
        r"a model that is not built\. Call model\.build, fit or evaluate first, or "
        r"load weights\.",
    ):
        hooks_on(SingleCollective()).predicting(model).__enter__()


def test_a_prediction_begins_with_equal_variables():
    collective, model = Noting(), compiled()

    with hooks_on(collective).predicting(model):
        assert "variables of the model" in collective.sent


def test_keras_makes_the_steps_itself():
    hooks, model = hooks_on(Elsewhere()), compiled()

    assert hooks.function_of(model, model.train_step, is_training=True) is None
    assert hooks.predict_function_of(model) is None


# Calls that all ranks make together.


def test_an_error_of_the_data_comes_out_of_the_step():
    hooks = hooks_on(SingleCollective())
    hooks._feed.error = RuntimeError("the data differs")

    with pytest.raises(RuntimeError, match="the data differs"), hooks.joint_call("x"):
        raise tf.errors.UnknownError(None, None, "in a numpy_function")


def test_other_errors_stay_what_they_are():
    hooks = hooks_on(SingleCollective())

    with pytest.raises(tf.errors.UnknownError), hooks.joint_call("x"):
        raise tf.errors.UnknownError(None, None, "something else")
    hooks._feed.error = RuntimeError("the data differs")
    with pytest.raises(KeyError), hooks.joint_call("x"):
        raise KeyError


def test_a_call_is_known_until_it_ends():
    hooks, model, found = hooks_on(Elsewhere()), compiled(), []

    def nested():
        with hooks.call_of(model, "train_step", is_joint=True):
            with hooks.call_of(None, "x", is_joint=False):
                found.append((hooks.is_called, hooks._call))
            found.append((hooks.is_called, hooks._call))
            raise KeyError

    with pytest.raises(KeyError):
        nested()
    assert found == [(True, (None, False)), (True, (model, True))]
    assert not hooks.is_called


def test_what_a_graph_makes_is_made_equal_after_the_call_that_traces_it(on_ranks):
    """Its variables have no values yet while the graph is traced."""

    def run(collective):
        hooks, model, made = hooks_on(collective), compiled(), []
        rows = tf.constant(1, tf.int64)

        def call(data):
            if not made:
                made.append(tf.Variable([1.0, data]))
                hooks.created.add(made[0])
            return made[0] + 1.0

        @tf.function(autograph=False)
        def step(x):
            shard = Shard(x, rows * 2, rows, ())
            return hooks.run_step(call, shard)

        for _ in range(2):
            with hooks.call_of(model, "train_step", is_joint=True):
                step(tf.constant(collective.rank + 2.0))
        sent = collective.calls.count("broadcast variables of the first step")
        return made[0].numpy().tolist(), sent

    assert on_ranks(2, run) == [([1.0, 2.0], 1)] * 2


@pytest.mark.parametrize(
    ("is_joint", "error"), [(True, RuntimeError), (False, tf.errors.UnknownError)]
)
def test_only_a_joint_call_meets_errors_of_the_shared_data(is_joint, error):
    hooks = hooks_on(SingleCollective())
    hooks._feed.error = RuntimeError("the data differs")
    call = hooks.call_of(None, "x", is_joint=is_joint)

    with pytest.raises(error), call:
        raise tf.errors.UnknownError(None, None, "in a numpy_function")


def test_a_model_in_float16_gets_our_loss_scaling():
    inner = keras.optimizers.SGD()
    found = hooks_on(SingleCollective()).scale_loss_of(inner)

    assert isinstance(found, LossScaleOptimizer)
    assert (found.name, found.inner_optimizer) == ("loss_scale_optimizer", inner)


# Whose variables a fit starts with.


@pytest.mark.parametrize("root_rank", [0, 1])
def test_a_fit_starts_with_the_variables_of_the_rank_it_names(on_ranks, root_rank):
    def run(collective):
        hooks, model = hooks_on(collective), compiled()
        model.layers[-1].bias.assign([collective.rank + 1.0])
        with hooks.fitting(model, root_rank):
            hooks.build(model, is_single_step=False)
            started = model.layers[-1].bias.numpy().tolist()
            # What is restored later, rank 0 has restored.
            model.layers[-1].bias.assign([collective.rank + 3.0])
            hooks.synchronize(model)
        return started, model.layers[-1].bias.numpy().tolist()

    assert on_ranks(2, run) == [([root_rank + 1.0], [3.0])] * 2


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


def test_a_rank_that_there_is_not_is_refused():
    hooks, model = hooks_on(SingleCollective()), compiled()
    with (
        pytest.raises(ValueError, match=r"^root_rank must be from 0 to 0\. Received: "),
        hooks.fitting(model, 1),
    ):
        pass


# Decisions.


def begins(hooks, model):
    hooks.training_begins(model, watches_begin=False, watches_end=True)


def test_decisions_are_those_of_one_fit():
    hooks, model, other = hooks_on(SingleCollective()), compiled(), compiled()
    with hooks.fitting(model, 0):
        before = hooks.decisions(model)
        begins(hooks, model)
        made = hooks.decisions(model)
        elsewhere = hooks.decisions(other)

    assert before is elsewhere is hooks.decisions(model) is None
    assert isinstance(made, Decisions)


def test_outside_of_fit_nothing_is_decided():
    hooks, model = hooks_on(SingleCollective()), compiled()
    begins(hooks, model)

    assert hooks.decisions(model) is None


def test_a_fit_that_fails_leaves_no_decisions():
    hooks, model = hooks_on(SingleCollective()), compiled()

    def fail():
        with hooks.fitting(model, 0):
            begins(hooks, model)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert hooks.decisions(model) is None


# What callbacks restore.


@pytest.mark.parametrize(("who", "is_restored"), [([], False), ([1], True)])
def test_if_any_rank_restores_all_start_equal_again(on_ranks, who, is_restored):
    def run(collective):
        hooks, model, rank = hooks_on(collective), compiled(), collective.rank
        model.layers[-1].bias.assign([rank + 1.0])
        with hooks.fitting(model, 0):
            found = hooks.restored(model, restores=rank in who)
        return found, model.layers[-1].bias.numpy().tolist()

    wanted = [(is_restored, [1.0]), (is_restored, [1.0 if is_restored else 2.0])]
    assert on_ranks(2, run) == wanted


def test_outside_of_fit_nobody_asks_what_is_restored():
    collective = Noting()

    assert not hooks_on(collective).restored(compiled(), restores=True)
    assert collective.sent == []


@pytest.mark.parametrize("first", [4, None])
def test_all_ranks_begin_in_the_epoch_of_rank_zero(on_ranks, first):
    def run(collective):
        return hooks_on(collective).first_epoch([first, 2][collective.rank])

    assert on_ranks(2, run) == [first, first]


# State that ranks have apart.


def test_what_ranks_have_apart_is_averaged_when_results_are_asked_for(on_ranks):
    """A step that does not reduce what it assigned leaves it different."""

    def run(collective):
        norm = keras.layers.BatchNormalization(momentum=0.5)
        model = compiled(norm)
        x = np.full((4, 2), 8.0 * (collective.rank + 1), "float32")
        hooks = hooks_on(collective)
        rows = tf.constant(4, tf.int64)

        def assign(data):
            step = hooks.step
            for variable in norm.non_trainable_variables:
                variable.assign(data[0])
                hooks.note_assigned(variable)
            return step.share()

        shard = Shard(x, rows * 2, rows, ())
        with hooks.call_of(model, "train_step", is_joint=True):
            hooks.run_step(assign, shard)
        mine = norm.moving_mean.numpy().tolist()
        hooks.metrics_result(model, lambda logs: logs, [])
        return mine, norm.moving_mean.numpy().tolist()

    assert on_ranks(2, run) == [([8.0, 8.0], [12.0, 12.0]), ([16.0] * 2, [12.0] * 2)]


def test_state_that_one_rank_only_has_apart_is_averaged_on_all(on_ranks):
    def run(collective):
        norm = keras.layers.BatchNormalization()
        model, hooks = compiled(norm), hooks_on(collective)
        rows = tf.constant(1, tf.int64)

        def assign(data):
            if collective.rank == 1:
                norm.moving_mean.assign([8.0, 8.0])
                hooks.note_assigned(norm.moving_mean)

        shard = Shard(np.ones((1, 2)), rows * 2, rows, ())
        with hooks.call_of(model, "train_step", is_joint=True):
            hooks.run_step(assign, shard)
        hooks.metrics_result(model, lambda logs: logs, [])
        return norm.moving_mean.numpy().tolist()

    assert on_ranks(2, run) == [[4.0, 4.0]] * 2


def test_a_model_without_state_of_layers_asks_nobody(on_ranks):
    def run(collective):
        hooks_on(collective).metrics_result(compiled(), lambda logs: logs, [])
        return "exchange state that differs" in collective.calls

    assert on_ranks(2, run) == [False, False]
