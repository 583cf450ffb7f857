import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives import SingleCollective
from tfdist.strategies.state import (
    broadcast_equal,
    put_back,
    reduce_metrics,
    start_equal,
)


def model_of(rank):
    keras.utils.set_random_seed(rank)
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(2),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5, seed=rank),
        ],
        name="model",
    )
    model.compile("adam", "mse", metrics=["mae"])
    x = np.random.default_rng(rank).normal(size=(8, 3))
    model.fit(x, x[:, :2], verbose=0)
    return model


@pytest.fixture(scope="module")
def models():
    """Return a model for each rank, trained on different data."""
    return [model_of(rank) for rank in range(2)]


def values_of(model):
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return [variable.numpy() for variable in variables]


def test_every_variable_becomes_that_of_rank_zero(on_ranks, models):
    wanted = values_of(models[0])
    different = [
        not np.array_equal(mine, its)
        for mine, its in zip(wanted, values_of(models[1]), strict=True)
    ]

    on_ranks(2, lambda collective: start_equal(models[collective.rank], collective))

    assert sum(different) > 10
    for model in models:
        for mine, its in zip(wanted, values_of(model), strict=True):
            np.testing.assert_array_equal(mine, its)


def test_a_model_that_is_not_compiled_has_weights_only(on_ranks):
    models = [keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])] * 2

    on_ranks(2, lambda collective: start_equal(models[collective.rank], collective))

    assert len(models[0].variables) == 2


def test_types_and_sizes_are_sent_in_groups(on_ranks):
    def broadcast(collective):
        scale = collective.rank + 1
        made = [
            tf.Variable(tf.cast(tf.fill(shape, scale), dtype))
            for shape in ([2, 2], [], [0], [2**21])
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

    with pytest.raises(
        RuntimeError,
        match=rf"The ranks have different variables in the scope\. Received: {words}\. "
        r"Make the same ones on every rank, and others outside of strategy\.scope\(\)",
    ):
        raise RuntimeError(texts[0])
    assert "different variables in the scope" in texts[1]


def test_different_types_are_refused(on_ranks):
    def broadcast(collective):
        dtype = tf.float64 if collective.rank else tf.float32
        broadcast_equal([tf.Variable(tf.zeros([2], dtype))], "x", collective)

    with pytest.raises(RuntimeError, match="different variables"):
        on_ranks(2, broadcast)


def test_names_may_differ(on_ranks):
    def broadcast(collective):
        made = tf.Variable(float(collective.rank), name=f"v{collective.rank}")
        broadcast_equal([made], "x", collective)
        return float(made)

    assert on_ranks(2, broadcast) == [0.0, 0.0]


def test_metrics_are_those_over_the_examples_of_all_ranks(on_ranks):
    rng = np.random.default_rng(5)
    y = rng.integers(0, 2, size=(30, 1)).astype("float32")
    p = rng.uniform(size=(30, 1)).astype("float32")
    parts = [slice(0, 4), slice(4, 11), slice(11, 30)]

    def compiled():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Identity()], name="m")
        metrics = ["mae", keras.metrics.AUC(), keras.metrics.Precision()]
        model.compile("sgd", "mse", metrics=metrics)
        return model

    def evaluate(model, part):
        model.evaluate(p[part], y[part], verbose=0)
        return model

    whole = evaluate(compiled(), slice(0, 30)).get_metrics_result()
    models = [evaluate(compiled(), part) for part in parts]
    states = [[v.numpy() for v in model.metrics_variables] for model in models]

    def reduce(collective):
        model = models[collective.rank]
        return reduce_metrics(
            model, collective, lambda logs: model.get_metrics_result(), None
        )

    for found in on_ranks(3, reduce):
        assert len(found) == 4
        for (_, mine), (_, wanted) in zip(found.items(), whole.items(), strict=True):
            np.testing.assert_allclose(mine, wanted, rtol=1e-6)
    for model, before in zip(models, states, strict=True):
        for variable, value in zip(model.metrics_variables, before, strict=True):
            np.testing.assert_array_equal(variable, value)


def test_logs_reach_the_result(models):
    found = reduce_metrics(
        models[0], SingleCollective(), lambda logs: {"got": logs}, {"loss": 1}
    )

    assert found == {"got": {"loss": 1}}


@pytest.mark.parametrize("is_stand_in", [True, False])
def test_a_step_on_a_stand_in_is_undone_but_for_seeds_and_weights(is_stand_in):
    model = model_of(0)
    variables = [*model.metrics_variables, *model.variables]
    before = [variable.numpy() for variable in variables]

    with put_back(model, tf.constant(is_stand_in)):
        for variable in variables:
            variable.assign(variable + 1)

    for variable, value in zip(variables, before, strict=True):
        is_seed = variable.path.endswith("seed_generator_state")
        is_put_back = is_stand_in and not variable.trainable and not is_seed
        np.testing.assert_array_equal(variable, value if is_put_back else value + 1)
    assert any(v.path.endswith("seed_generator_state") for v in model.variables)
