import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives.single import SingleCollective
from tfdist.data.sharding import Shard
from tfdist.training.state import (
    CreatedVariables,
    broadcast_equal,
    put_back,
    start_equal,
)
from tfdist.training.step import Step


def test_types_and_sizes_are_sent_in_groups(on_ranks):
    def broadcast(collective):
        scale = collective.rank + 1
        made = [
            tf.Variable(tf.cast(tf.fill(shape, scale), dtype))
            for shape in ([2, 2], [], [0], [2**19])
            for dtype in (tf.float32, tf.int64, tf.bfloat16, tf.bool)
        ]
        broadcast_equal(made, "test", collective)
        return made, collective.calls

    ranks = on_ranks(2, broadcast)

    for mine, its in zip(*[made for made, _ in ranks], strict=True):
        np.testing.assert_array_equal(mine.numpy(), its.numpy())
    assert ranks[0][1] == ranks[1][1]
    assert set(ranks[0][1]) == {
        "exchange the variables of test",
        "broadcast variables of test",
    }


@pytest.mark.parametrize(
    ("zero", "one", "words"),
    [
        ([(2,)], [(3,)], r"v:0 \(2,\) float32 on rank 0, v:0 \(3,\) float32 on rank 1"),
        ([(2,)], [(2,), (4,)], r"none on rank 0, v:0 \(4,\) float32 on rank 1"),
    ],
)
def test_different_variables_are_refused_on_every_rank(on_ranks, zero, one, words):
    def broadcast(collective):
        shapes = one if collective.rank else zero
        made = [tf.Variable(tf.zeros(shape), name="v") for shape in shapes]
        with pytest.raises(RuntimeError) as raised:
            broadcast_equal(made, "the scope", collective)
        return str(raised.value)

    texts = on_ranks(2, broadcast)

    assert re.match(
        rf"The ranks have different variables in the scope\. Received: {words}\. "
        r"Make the same ones on every rank, and others outside of strategy\.scope\(\)",
        texts[0],
    )
    assert "different variables in the scope" in texts[1]


def test_variables_of_tensorflow_become_those_of_rank_zero(on_ranks):
    models = [keras.Sequential([keras.Input((3,))]) for _ in range(2)]
    for rank, model in enumerate(models):
        model.scale = tf.Variable(rank + 1.0)
        model.drawn = [tf.Variable([rank]), tf.Variable(str(rank))]
        model.loose = tf.Variable([rank], shape=tf.TensorShape(None))

    on_ranks(2, lambda collective: start_equal(models[collective.rank], collective))

    for model in models:
        assert (model.scale.numpy(), model.drawn[0].numpy()) == (1.0, 0)
    assert models[1].drawn[1].numpy() == b"1", "strings cannot be broadcast"


def normalized(rank):
    layer = keras.layers.Normalization()
    layer.adapt(np.array([[1.0], [2.0 + rank]]))
    return layer


def looked_up(rank):
    return keras.layers.StringLookup(vocabulary=["ab", "ba"][:: 1 - 2 * rank])


@pytest.mark.parametrize(
    ("layer_of", "is_refused"),
    [
        (looked_up, True),
        (normalized, True),
        (lambda rank: keras.layers.Discretization([1.0, 2.0 + rank]), True),
        (lambda rank: looked_up(0), False),
        (lambda rank: normalized(0), False),
    ],
)
def test_layers_that_map_in_other_ways_are_refused(on_ranks, layer_of, is_refused):
    layers = [layer_of(rank) for rank in range(2)]
    dtype = "string" if isinstance(layers[0], keras.layers.StringLookup) else "float32"
    models = [keras.Sequential([keras.Input((1,), dtype=dtype), one]) for one in layers]

    def start(collective):
        start_equal(models[collective.rank], collective)

    if not is_refused:
        on_ranks(2, start)
        return
    with pytest.raises(RuntimeError, match="other values in the layer .* on rank 1"):
        on_ranks(2, start)


def test_accumulated_gradients_stay_each_rank_s_own(on_ranks):
    """They are parts of a sum, and rank 0's would count once for every rank."""
    sgd = keras.optimizers.SGD(gradient_accumulation_steps=2)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(sgd, "mse")
    sgd.build(model.trainable_variables)
    kept = [v for v in sgd.variables if "gradient_accumulator" in v.path]
    sent = []

    class Alone(SingleCollective):
        def broadcast(self, tensors, root_rank=0, *, name):
            sent.extend(tensors)
            return tensors

    start_equal(model, Alone())

    assert len(kept) == 2
    everything = {id(v) for v in [*model.variables, *sgd.variables]}
    metrics = {id(v) for v in model.metrics_variables}
    assert len(metrics) == 2
    assert len(sent) == len(everything - metrics) - 2


def step_of(model, *, is_stand_in):
    """Return the step of a model on a stand-in, or on rows of its own."""
    return Step(Shard(None, 1, 1, (tf.constant(is_stand_in),)), model, None)


@pytest.mark.parametrize("is_stand_in", [True, False])
def test_a_step_on_a_stand_in_is_undone_but_for_seeds_and_weights(is_stand_in):
    layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5, seed=1)]
    model = keras.Sequential([keras.Input((2,)), *layers, keras.layers.Dense(2)])
    model.compile("adam", "mse", metrics=["mae"], run_eagerly=True)
    model.train_on_batch(np.ones((4, 2)), np.ones((4, 2)))
    variables = [*model.metrics_variables, *model.variables]
    before = [variable.numpy() for variable in variables]

    step = step_of(model, is_stand_in=is_stand_in)
    with put_back(step):
        for variable in variables:
            variable.assign(variable + 1)
            step.note_assigned(variable)

    for variable, value in zip(variables, before, strict=True):
        is_seed = variable.path.endswith("seed_generator_state")
        is_put_back = is_stand_in and not variable.trainable and not is_seed
        np.testing.assert_array_equal(variable, value if is_put_back else value + 1)
    assert any(v.path.endswith("seed_generator_state") for v in model.variables)


def test_what_is_drawn_in_a_step_differs_between_ranks():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.5)])
    model.compile("adam", "mse")
    (seeds,) = [layer.seed_generator for layer in model.layers]
    first, second = (keras.Variable(tf.zeros(2), trainable=False) for _ in range(2))

    @tf.function
    def note():
        step = step_of(model, is_stand_in=False)
        step.drawn.append(seeds.state)
        step.note_assigned(first, keras.random.normal((2,), seed=seeds))
        step.note_assigned(second, 2.0 * tf.ones(2))
        assert [*step.assigned] == [id(first)]

    assert note() is None


def made_on(on_ranks, act):
    """Make a variable of its own value on each of two ranks; return what they have."""

    def run(collective):
        created = CreatedVariables(collective)
        variable = tf.Variable(float(collective.rank + 1))
        act(created, variable)
        return float(variable)

    return on_ranks(2, run)


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
        created.start_equal_since(created.count, keras.Model())

    assert made_on(on_ranks, act) == [1.0, 2.0]

    def act_since(created, variable):
        known = created.count
        created.add(variable)
        created.start_equal_since(known, keras.Model())

    assert made_on(on_ranks, act_since) == [1.0, 1.0]


@pytest.mark.parametrize("extra", [0, 1])
def test_what_one_rank_has_let_go_is_not_sent(on_ranks, extra):
    """A thread or a cycle may hold a variable on one rank for longer than elsewhere."""

    def run(collective):
        created, is_one = CreatedVariables(collective), bool(collective.rank)
        gone, kept = tf.Variable([1, 2]), tf.Variable(float(collective.rank + 1))
        more = [tf.Variable([True]) for _ in range(extra * is_one)]
        for variable in (gone, *more, kept):
            created.add(variable)
        if is_one:
            del gone, variable
        try:
            created.start_equal()
        except RuntimeError as error:
            return str(error)
        return float(kept)

    found = on_ranks(2, run)
    if not extra:
        assert found == [1.0, 1.0]
    else:
        assert all("different variables in the scope" in text for text in found)
