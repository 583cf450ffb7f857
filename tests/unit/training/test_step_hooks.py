import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives import SingleCollective
from tfdist.data.sharding import Shard
from tfdist.gradients import GradientReducer
from tfdist.training.step_hooks import StepHooks


def hooks_on(collective):
    return StepHooks(collective, GradientReducer(collective))


def model_of():
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    return model


def run_step(hooks, model, call, data, *, is_joint=True):
    """Run a step within a call of Keras; the model of predictions is None."""
    hooks._call = (model, is_joint)
    try:
        return hooks.run_step(call, data)
    finally:
        hooks._call = None


def shard(data, own, rows, *stand_in):
    own, rows = (tf.constant(n, tf.int64) for n in (own, rows))
    return Shard(data, rows, own, tuple(tf.constant(flag) for flag in stand_in))


OWNS = [1, 3]


def on_shards(on_ranks, act, *, owns=OWNS):
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


def test_a_step_knows_its_rows_and_no_longer_than_it_takes(on_ranks):
    def act(hooks, model):
        assert hooks.in_step
        return hooks, float(hooks.share())

    found = on_shards(on_ranks, act)

    assert [share for _, share in found] == [0.25, 0.75]
    assert [hooks.in_step for hooks, _ in found] == [False, False]


def test_a_step_that_fails_is_over(on_ranks):
    def run(collective):
        hooks, model = hooks_on(collective), model_of()
        with pytest.raises(KeyError):
            run_step(hooks, model, lambda data: {}["x"], shard(1, 1, 1))
        return hooks.in_step

    assert on_ranks(1, run) == [False]


@pytest.mark.parametrize(
    ("is_joint", "shares", "calls"),
    [
        (True, [0.25, 0.75], ["all_reduce rows of the batch"]),
        (False, [1.0, 1.0], []),
    ],
)
def test_batches_of_one_s_own_are_parts_of_one_in_joint_calls(
    on_ranks, is_joint, shares, calls
):
    def run(collective):
        hooks, model = hooks_on(collective), model_of()
        batch = np.ones((OWNS[collective.rank], 2), "float32")
        data = (tf.constant(batch), None, None)
        share = run_step(
            hooks,
            model,
            lambda data: (hooks.step.trainer is model, float(hooks.share())),
            data,
            is_joint=is_joint,
        )
        return share, collective.calls

    found = on_ranks(2, run)

    assert [share for share, _ in found] == [(True, share) for share in shares]
    assert [its for _, its in found] == [calls] * 2


def test_a_test_of_one_s_own_asks_nobody(on_ranks):
    def run(collective):
        hooks, model = hooks_on(collective), model_of()
        own = float(collective.rank + 5)
        data = (tf.ones([1, 2]), None, None)
        found = run_step(
            hooks,
            model,
            lambda data: float(hooks.sum_over_ranks(own, "x")),
            data,
            is_joint=False,
        )
        return found, collective.calls

    assert on_ranks(2, run) == [(5.0, []), (6.0, [])]


def test_values_are_summed_over_ranks(on_ranks):
    def act(hooks, model):
        return float(hooks.sum_over_ranks(hooks.share() * 8, "x"))

    assert on_shards(on_ranks, act) == [8.0, 8.0]


def test_predictions_are_joined_without_stand_ins(on_ranks):
    def run(collective):
        own = [2, 0][collective.rank]
        rows = tf.fill([max(own, 1), 1], float(collective.rank + 1))
        step = shard(None, own, 2, own == 0)
        found = run_step(hooks_on(collective), None, lambda data: {"y": [rows]}, step)
        return found["y"][0].numpy().tolist()

    assert on_ranks(2, run) == [[[1.0], [1.0]]] * 2


def test_predictions_of_one_s_own_batch_are_its_own(on_ranks):
    def run(collective):
        hooks = hooks_on(collective)
        rows = tf.fill([collective.rank + 1, 1], 2.0)
        found = run_step(hooks, None, lambda data: rows, (rows,), is_joint=False)
        return found.shape[0], collective.calls

    assert on_ranks(2, run) == [(1, []), (2, [])]


def test_a_step_gets_arrays_as_tensors():
    hooks, model = hooks_on(SingleCollective()), model_of()
    data = (np.ones((3, 2), "float32"), None, {"y": tf.ones([3])})

    def look(data):
        return [type(leaf) for leaf in tf.nest.flatten(data)], hooks.step.shard.own

    types, own = run_step(hooks, model, look, data, is_joint=False)

    assert [issubclass(one, tf.Tensor) for one in types] == [True, False, True]
    assert int(own) == 3


# Variables that a step makes.


def creating(hooks, value):
    """Note a variable as the strategy does that makes it."""
    variable = tf.Variable(value)
    hooks.created.add(variable)
    return variable


def test_variables_that_a_step_makes_get_the_values_of_rank_zero(on_ranks):
    def run(collective):
        hooks, model = hooks_on(collective), model_of()
        before = creating(hooks, 5.0 + collective.rank)
        made = []

        def call(data):
            made.append(creating(hooks, 1.0 + collective.rank))

        run_step(hooks, model, call, shard(np.ones((1, 2)), 1, 2))
        return float(made[0]), float(before)

    # What was made before waits for its own start.
    assert on_ranks(2, run) == [(1.0, 5.0), (1.0, 6.0)]


def test_a_step_of_one_s_own_sends_no_variables(on_ranks):
    def run(collective):
        hooks, model, made = hooks_on(collective), model_of(), []

        def call(data):
            made.append(creating(hooks, float(collective.rank)))

        run_step(hooks, model, call, (tf.ones([1, 2]),), is_joint=False)
        return float(made[0]), collective.calls

    assert on_ranks(2, run) == [(0.0, []), (1.0, [])]


# Stand-ins.


def test_a_stand_in_leaves_no_trace_in_metrics_and_state(on_ranks):
    def act(hooks, model):
        loss, norm = model.metrics[0], model.layers[0]
        loss.update_state(float("nan"))
        norm.moving_mean.assign([7.0, 7.0])
        for variable in (*loss.variables, norm.moving_mean):
            hooks.note_assigned(variable)
        return loss, norm

    (_, (loss, norm)) = on_shards(on_ranks, act, owns=[2, 0])

    assert float(loss.count.numpy()) == 0.0
    assert norm.moving_mean.numpy().tolist() == [0.0, 0.0]


def test_a_stand_in_gets_the_statistics_of_the_others(on_ranks):
    def act(hooks, model):
        norm = model.layers[0]
        value = [3.0, float("nan")][hooks._collective.rank]
        norm.moving_mean.assign([value, value])
        hooks.note_assigned(norm.moving_mean)
        hooks.reduce_gradients([tf.constant([value])])
        return norm

    for norm in on_shards(on_ranks, act, owns=[2, 0]):
        assert norm.moving_mean.numpy().tolist() == [3.0, 3.0]
        assert norm.moving_variance.numpy().tolist() == [1.0, 1.0]


# Gradients.


def test_gradients_weigh_their_rows_and_are_summed(on_ranks):
    def act(hooks, model):
        gradient = tf.constant([2.0, 4.0][hooks._collective.rank])
        (total,) = hooks.reduce_gradients([gradient])
        return float(total)

    assert on_shards(on_ranks, act) == [2 / 4 + 4 * 3 / 4] * 2


def test_what_was_weighed_before_is_summed_only(on_ranks):
    def act(hooks, model):
        norm = model.layers[0]
        hooks.note_assigned(norm.moving_mean)
        weighed = hooks.weigh_gradients([tf.constant(4.0)])
        (total,) = hooks.reduce_gradients(weighed, is_weighed=True)
        return float(total), hooks.step.state()

    # What layers keep waits for the end of the epoch: these journeys are rare.
    assert on_shards(on_ranks, act) == [(4.0, [0])] * 2


def test_the_state_of_layers_travels_with_the_gradients(on_ranks):
    def act(hooks, model):
        norm = model.layers[0]
        norm.moving_mean.assign([4.0 * hooks._collective.rank] * 2)
        hooks.note_assigned(norm.moving_mean)
        gradients = hooks.reduce_gradients([tf.constant(1.0), tf.constant(2.0)])
        return (
            [float(gradient) for gradient in gradients],
            norm.moving_mean.numpy().tolist(),
            [call for call in hooks._collective.calls if "all_reduce" in call],
        )

    for gradients, mean, calls in on_shards(on_ranks, act):
        assert gradients == [1.0, 2.0]
        assert mean == [3.0, 3.0]
        assert calls == ["all_reduce gradients/b0"]


def test_state_that_only_one_rank_assigned_travels_too(on_ranks):
    def act(hooks, model):
        norm = model.layers[0]
        if hooks._collective.rank == 1:
            norm.moving_mean.assign([4.0, 8.0])
            hooks.note_assigned(norm.moving_mean)
        hooks.reduce_gradients([tf.constant(1.0)])
        return norm.moving_mean.numpy().tolist()

    assert on_shards(on_ranks, act) == [[3.0, 6.0]] * 2


def test_ranks_agree_on_state_once_in_graphs_and_in_every_eager_step(on_ranks):
    def run(collective):
        hooks, model = hooks_on(collective), model_of()
        data = shard(np.ones((1, 2), "float32"), 1, 1)

        def call(data):
            hooks.note_assigned(model.layers[0].moving_mean)
            hooks.reduce_gradients([tf.constant(1.0)])
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
                return hooks.reduce_gradients([tf.constant(3.0)])[0]

            return tf.cond(data > 0.0, branch, lambda: 0.0), hooks.step.state()

        @tf.function
        def step(x):
            total, state = run_step(hooks, model, call, shard(x, 1, 1))
            return total, tf.constant(state)

        total, state = step(tf.constant(1.0))
        exchanged = [call for call in collective.calls if "exchange" in call]
        return float(total), state.numpy().tolist(), exchanged

    # It waits for the end of the epoch, as what is accumulated does.
    assert on_ranks(1, run) == [(3.0, [0], [])]


def test_in_a_custom_loop_gradients_are_summed_as_they_are(on_ranks):
    def act(collective):
        hooks = hooks_on(collective)
        gradients = [tf.constant(2.0), None]
        return float(hooks.reduce_gradients(gradients)[0]), hooks.weigh_gradients([1.0])

    assert on_ranks(2, act) == [(4.0, [1.0])] * 2


def test_what_is_reduced_is_left_alone(on_ranks):
    def act(hooks, model):
        gradients = [tf.constant(2.0), None]
        with hooks.gradients_are_reduced():
            found = [
                hooks.complete_gradients(gradients, [None, None]),
                hooks.weigh_gradients(gradients),
                hooks.reduce_gradients(gradients),
            ]
        again = hooks.reduce_gradients([tf.constant(1.0 / hooks.share())])
        return [float(one[0]) for one in found], float(again[0])

    assert on_shards(on_ranks, act) == [([2.0, 2.0, 2.0], 2.0)] * 2


def test_a_gradient_that_only_another_rank_has_is_filled_in(on_ranks):
    def act(hooks, model):
        kernel = model.layers[1].kernel
        gradient = None if hooks._collective.rank else tf.ones([2, 1])
        (found,) = hooks.complete_gradients([gradient], [kernel])
        return found.numpy().tolist()

    assert on_shards(on_ranks, act) == [[[1.0], [1.0]], [[0.0], [0.0]]]


# Seeds and assignments.


def test_seeds_differ_in_steps_and_are_equal_elsewhere(on_ranks):
    def act(hooks, model):
        return hooks.fold_seed(tf.constant([5, 6], tf.uint32)).numpy().tolist()

    first, second = on_shards(on_ranks, act)

    assert first == [5, 6]
    assert second[0] != 5
    assert second[1] == 6
    assert on_ranks(2, lambda c: hooks_on(c).fold_seed(7)) == [7, 7]


def test_assignments_are_noted_in_steps_only():
    hooks, variable = hooks_on(SingleCollective()), keras.Variable(1.0)
    hooks.note_assigned(variable)
    model = model_of()
    noted = []

    def call(data):
        hooks.note_assigned(variable)
        noted.extend(hooks.step.assigned.values())

    run_step(hooks, model, call, shard(None, 1, 1), is_joint=False)

    assert noted == [variable]


@pytest.mark.parametrize("jit_compile", [True, False])
def test_xla_compiles_a_step_that_wants_it_and_no_eager_one(jit_compile, monkeypatch):
    scopes = []
    original = tf.xla.experimental.jit_scope

    def jit_scope(**options):
        scopes.append(options)
        return original(**options)

    monkeypatch.setattr(tf.xla.experimental, "jit_scope", jit_scope)
    hooks, model = hooks_on(SingleCollective()), model_of()
    model.compile("sgd", "mse", jit_compile=jit_compile)

    def run():
        data = shard(None, 1, 1)
        return run_step(hooks, model, lambda data: tf.constant(1.0), data)

    run()
    assert scopes == []
    tf.function(run)()
    assert scopes == [{"separate_compiled_gradients": True}] * jit_compile
