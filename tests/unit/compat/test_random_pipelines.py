from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat import random_pipelines as compat
from tfdist.compat.keras.install import install
from tfdist.data.sharding import shard

SLOW = pytest.mark.slow
ROWS = np.arange(128.0, dtype="float32").reshape(64, 2)


@pytest.fixture(autouse=True)
def no_seed_is_agreed():
    """Let Keras have no global seed, and the pipelines of other tests no agreed one."""
    keras.utils.clear_session()
    install(is_alone=True)
    yield
    compat._AGREED.draws = None
    keras.utils.clear_session()


def epochs(dataset, count=2):
    """Return all numbers of a dataset in each epoch."""
    return [
        np.concatenate(
            [np.ravel(leaf) for one in dataset for leaf in tf.nest.flatten(one)]
        )
        for _ in range(count)
    ]


def rows(batch=1):
    return tf.data.Dataset.from_tensor_slices(ROWS).batch(batch)


def mapped(function, **how):
    how = {"num_parallel_calls": 4, **how}
    return rows().map(function, **how)


def noisy(x):
    return x + tf.random.normal(tf.shape(x))


traced = tf.function(noisy)


def test_datasets_without_a_seed_are_shuffled_by_an_agreed_one():
    def shuffles():
        datasets = [tf.data.Dataset.range(50).shuffle(50) for _ in range(2)]
        return [[*map(int, dataset)] for dataset in datasets]

    def shuffles_from(seed):
        compat.draw_alike(seed)
        return shuffles()

    one, other = shuffles_from(7)
    assert one != other
    assert shuffles_from(7) == [one, other]
    assert shuffles_from(8) != [one, other]
    compat.draw_alike(7)
    with compat.drawing_apart():
        assert shuffles() != [one, other]
        tf.random.set_seed(1)
        of_user = shuffles()
    tf.random.set_seed(1)
    assert shuffles() == of_user


UNSEEDED = {
    "normal": noisy,
    "uniform": lambda x: x + tf.random.uniform(tf.shape(x)),
    "truncated": lambda x: x + tf.random.truncated_normal(tf.shape(x)),
    "integers": lambda x: x + tf.cast(tf.random.uniform([], 0, 999, tf.int32), x.dtype),
    "shuffled": lambda x: tf.random.shuffle(tf.transpose(x)),
    "classes": lambda x: tf.random.categorical([[0.1, 0.2]], 5),
    "branches": lambda x: noisy(x) if tf.random.uniform([]) < 0.5 else x,
    "images": lambda x: tf.image.random_crop(x, [1, 1]),
    "pairs": lambda x: {"x": (x, noisy(x))},
    "gamma": lambda x: tf.random.gamma(tf.shape(x), [0.2, 0.4], 3.0),
    "poisson": lambda x: tf.random.poisson([3], 9.0 + x),
    "tf.function": tf.function(noisy),
    "called tf.function": lambda x: traced(x) + traced(x),
    "vectorized": lambda x: tf.vectorized_map(noisy, tf.concat([x, x], 0)),
}


def mapped_in(method):
    """Return the noisy rows of datasets that a function makes, shuffled."""
    return getattr(rows(8), method)(
        lambda x: tf.data.Dataset.from_tensor_slices(x).map(noisy).shuffle(8)
    )


# The next test has all operations in one function.
APART = ("normal", "branches", "pairs", "tf.function")
MADE = {name: partial(mapped, UNSEEDED[name]) for name in APART} | {
    name: partial(mapped_in, name) for name in ("flat_map", "interleave")
}


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=SLOW if name == "interleave" else ())
        for name, make in MADE.items()
    ],
)
def test_operations_without_a_seed_draw_alike_on_all_ranks(make):
    def draws(seed):
        compat.draw_alike(seed)
        return epochs(make())

    one, other = draws(7), draws(7)

    np.testing.assert_array_equal(one, other)
    assert not np.array_equal(one, draws(8))
    assert not np.array_equal(*one), "each epoch draws anew"


def test_operations_without_a_seed_draw_alike_in_one_function():
    def draw_all(x):
        drawn = {}
        for name, draw in UNSEEDED.items():
            drawn[name] = draw(x)
        return drawn

    def draws(seed):
        compat.draw_alike(seed)
        dataset = mapped(draw_all)
        seen = [[*dataset] for _ in range(2)]
        return {
            name: [epochs([row[name] for row in rows], 1)[0] for rows in seen]
            for name in UNSEEDED
        }

    one, again, other = draws(7), draws(7), draws(8)

    for name, drawn in one.items():
        np.testing.assert_array_equal(drawn, again[name], err_msg=name)
        assert not np.array_equal(drawn, other[name]), name
        assert not np.array_equal(*drawn), f"{name}: each epoch draws anew"


@pytest.mark.parametrize(
    ("batch", "function", "count"),
    [
        (1, lambda x: (tf.random.uniform([]), tf.random.uniform([])), 2 * len(ROWS)),
        (8, lambda x: tf.map_fn(lambda _: tf.random.uniform([]), x[:, 0]), len(ROWS)),
        pytest.param(
            32,
            lambda x: tf.vectorized_map(
                lambda row: tf.vectorized_map(lambda _: tf.random.uniform([]), row), x
            ),
            2 * len(ROWS),
            marks=SLOW,
        ),
    ],
    ids=["elements and operations", "iterations of a loop", "of a vectorized loop"],
)
def test_each_has_numbers_of_its_own(batch, function, count):
    compat.draw_alike(1)
    dataset = rows(batch).map(function, num_parallel_calls=4)

    assert len(np.unique(epochs(dataset, 1))) == count


def test_datasets_that_a_function_makes_are_shuffled_anew():
    compat.draw_alike(1)
    made = tf.data.Dataset.range(2).flat_map(
        lambda _: tf.data.Dataset.range(50).shuffle(50)
    )
    orders = np.concatenate(epochs(made)).reshape(4, 50)

    assert len(np.unique(orders, axis=0)) == 4
    assert all(len({*order}) == 50 for order in orders)


def test_what_other_functions_make_is_shuffled_as_by_tensorflow():
    compat.draw_alike(1)
    shuffled = tf.data.Dataset.range(99).group_by_window(
        lambda _: tf.constant(0, tf.int64), lambda _, window: window.shuffle(99), 99
    )

    # Not by one number, which would be that of every epoch.
    assert not np.array_equal(*epochs(shuffled))


def test_structures_and_lengths_are_kept():
    compat.draw_alike(1)
    pairs = tf.data.Dataset.zip(rows(3), rows(3))

    both = pairs.map(lambda x, y: (noisy(x), y))
    named = pairs.map(lambda x, y: {"x": x, "y": y}).map(
        lambda row: {**row, "x": noisy(row["x"])}
    )

    assert both.element_spec == pairs.element_spec
    assert named.element_spec.keys() == {"x", "y"}
    assert len(both) == len(named) == 22


def seeded_operation():
    return lambda x: x + tf.random.normal(tf.shape(x), seed=3)


def seeded_generator():
    generator = tf.random.Generator.from_seed(3)
    return lambda x: x + generator.normal(tf.shape(x))


def seeded_layer():
    layer = keras.layers.GaussianNoise(1.0, seed=3)
    return lambda x: layer(x, training=True)


@pytest.mark.parametrize(
    "make",
    [seeded_operation, seeded_generator, pytest.param(seeded_layer, marks=SLOW)],
)
def test_seeded_draws_are_those_of_calls_one_after_the_other(make):
    in_order = epochs(mapped(make(), num_parallel_calls=None))
    compat.draw_alike(1)

    for how in ({}, {}, {}, {"deterministic": False}):
        np.testing.assert_array_equal(epochs(mapped(make(), **how)), in_order)


def test_a_global_seed_of_the_user_is_left_alone():
    keras.utils.set_random_seed(3)
    expected = epochs(mapped(noisy, num_parallel_calls=None))
    compat.draw_alike(1)
    keras.utils.set_random_seed(3)

    np.testing.assert_array_equal(epochs(mapped(noisy)), expected)


def with_policy(policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return rows().with_options(options)


def test_a_map_of_one_rank_s_data_draws_apart():
    policies = tf.data.experimental.AutoShardPolicy
    agreed = []
    for _ in range(2):
        compat.draw_alike(1)
        with compat.drawing_apart():
            apart = mapped(noisy)
        own = with_policy(policies.OFF).map(noisy)
        agreed.append([epochs(apart), epochs(own)])
        assert not compat.has_seeds(own)

    assert not np.array_equal(agreed[0][0], agreed[1][0])
    assert not np.array_equal(agreed[0][1], agreed[1][1])


def test_a_map_without_draws_stays_as_it_is():
    compat.draw_alike(1)
    calls = []

    dataset = mapped(lambda x: calls.append(1) or 2 * x)

    assert len(calls) == 1
    assert not compat.has_seeds(dataset)
    assert compat.has_seeds(mapped(noisy).batch(2).prefetch(1))
    np.testing.assert_array_equal(epochs(dataset, 1)[0], 2 * np.ravel(ROWS))


def test_outside_of_a_map_operations_draw_as_before():
    compat.draw_alike(1)
    one = tf.random.normal([9])
    compat.draw_alike(1)

    assert not np.array_equal(one, tf.random.normal([9]))


@pytest.mark.parametrize("draws", ["layer", "operation"])
def test_parts_of_other_ranks_draw_other_numbers(draws, monkeypatch):
    """The same row number of each part is another row of the data."""
    tf_config = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", '

    def drawn(rank):
        monkeypatch.setenv("TF_CONFIG", f'{tf_config}"index": {rank}}}}}')
        keras.utils.clear_session()
        tf.random.set_seed(1)
        layer = keras.layers.GaussianNoise(1.0, seed=3)
        function = noisy if draws == "operation" else partial(layer, training=True)
        part = shard(tf.data.Dataset.from_tensors(ROWS * 0.0), rank=rank, size=2)
        return np.concatenate([*part.map(function).as_numpy_iterator()])

    first, second = drawn(0), drawn(1)
    np.testing.assert_array_equal(drawn(0), first)
    assert not np.intersect1d(first, second).size
