"""What a strategy of several processes promises beside equal weights."""

import random
import re
import warnings

import keras
import numpy as np
import pytest

import tfdist

ROWS = 101


class Seen(keras.metrics.Metric):
    """Counts how often each row, which is its own number, has been seen."""

    def __init__(self, name="seen", dtype=None, rows=ROWS):
        super().__init__(name=name, dtype=dtype)
        self.counts = self.add_variable((rows,), "zeros", name="counts")

    def update_state(self, y_true, y_pred, sample_weight=None):
        rows = keras.ops.cast(keras.ops.reshape(y_true, (-1,)), "int32")
        number = self.counts.shape[0]
        self.counts.assign_add(keras.ops.sum(keras.ops.one_hot(rows, number), axis=0))

    def result(self):
        return {
            "fewest": keras.ops.min(self.counts),
            "most": keras.ops.max(self.counts),
        }


def numbered(strategy, **options):
    """Return a compiled model that counts its rows, and the rows."""
    rows = np.arange(ROWS, dtype="float32").reshape(-1, 1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(1e-6)
        model.compile(optimizer=optimizer, loss="mse", metrics=[Seen()], **options)
    return model, rows


def how_often(strategy, *data, **options):
    """Train for two epochs; how often the rows were seen, at least and at most."""
    model, _ = numbered(strategy)
    logs = model.fit(*data, epochs=2, verbose=0, **options).history
    return [logs["fewest"], logs["most"]]


def each_row_once(strategy):
    """Train on kinds of input; how often rows were seen, by kind."""
    import tensorflow as tf

    _, rows = numbered(strategy)
    dataset = tf.data.Dataset.from_tensor_slices((rows, rows))
    shuffled = dataset.shuffle(ROWS).batch(10)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Your input ran out of data")
        cut = tfdist.data.shard(dataset.batch(10)).map(lambda x, y: (x, y))
        of_cut = how_often(strategy, cut)
    return {
        "arrays, no seed": how_often(strategy, rows, rows, batch_size=10),
        "dataset, shuffled without a seed": how_often(strategy, shuffled),
        "dataset, sharded before a map": of_cut,
        "own dataset, unknown length": how_often(
            strategy, own_dataset(strategy, dataset)
        ),
    }


def own_dataset(strategy, dataset):
    """The own part of each of three ranks, of very different lengths."""

    def part(context):
        parts = dataset.take(20), dataset.skip(20).take(50), dataset.skip(70)
        mine = parts[context.input_pipeline_id]
        return mine.filter(lambda x, y: x[0] >= 0.0).batch(4)

    return strategy.distribute_datasets_from_function(part)


def used_on_some_ranks(strategy):
    """Train a model of which each rank uses another part."""

    class Parts(keras.Model):
        def __init__(self):
            super().__init__()
            self.layers_by_rank = [keras.layers.Dense(1) for _ in range(3)]

        def build(self, shape):
            for layer in self.layers_by_rank:
                layer.build(shape)

        def call(self, inputs):
            return self.layers_by_rank[tfdist.rank()](inputs)

    with strategy.scope():
        model = Parts()
        model.compile(optimizer="sgd", loss="mse")
    before = None
    for _ in range(2):
        model.fit(np.ones((12, 4)), np.ones((12, 1)), batch_size=6, verbose=0)
        before = before or model.get_weights()
    changed = [
        not np.array_equal(old, new)
        for old, new in zip(before, model.get_weights(), strict=True)
    ]
    return model.get_weights(), changed


def errors(strategy):
    """Make every mistake of which all ranks learn together; the errors by name."""
    import tensorflow as tf

    found = {}

    def expect(name, mistake):
        try:
            mistake()
        except Exception as error:
            lines = [f"{type(error).__name__}: {error}"]
            found[name] = "\n".join(lines + getattr(error, "__notes__", []))

    model, rows = numbered(strategy)
    seed = tfdist.rank()
    shuffled = tf.data.Dataset.from_tensor_slices((rows, rows)).shuffle(ROWS, seed=seed)
    expect("other data", lambda: model.fit(shuffled.batch(10), verbose=0))
    part = rows[tfdist.rank() :]
    expect("other length", lambda: model.fit(part, part, verbose=0))
    more = {"validation_data": (part, part), "verbose": 0}
    expect("validation", lambda: model.fit(rows, rows, **more))
    expect("evaluate", lambda: model.evaluate(part, part, verbose=0))
    expect("predict", lambda: model.predict(part, verbose=0))
    with strategy.scope():
        wide = keras.Sequential(
            [
                keras.Input((1,)),
                keras.layers.Dense(2 + tfdist.rank()),
                keras.layers.Dense(1),
            ]
        )
        wide.compile(loss="mse")
    expect("other variables", lambda: wide.fit(rows, rows, verbose=0))
    with strategy.scope():
        variable = keras.Variable([1.0])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([variable])
        expect("apply", lambda: optimizer.apply([tf.constant([1.0])], [variable]))
    outside = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    outside.compile(loss="mse")
    expect("outside", lambda: outside.fit(rows, rows, verbose=0))
    with strategy.scope():
        float8 = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        float8.compile(loss="mse")
        float8.layers[0].kernel.overwrite_with_gradient = True
    expect("overwritten", lambda: float8.fit(rows, rows, verbose=0))
    with strategy.scope():
        lstm = keras.layers.LSTM(1, stateful=True)
        stateful = keras.Sequential([keras.Input((1, 1), batch_size=101), lstm])
        stateful.compile(loss="mse")
    with strategy.scope():
        fixed = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        fixed.compile(loss=lambda y, p: (y - p) ** 2 + tf.ones((32, 1)))
    expect("batch size", lambda: fixed.fit(rows[:96], rows[:96], verbose=0))
    once = {"batch_size": 101, "verbose": 0}
    expect("stateful", lambda: stateful.fit(rows[:, None], rows, **once))
    return found


def loops(strategy):
    """Use the strategy as tf.distribute's guides do."""
    import tensorflow as tf

    rank, size = tfdist.rank(), tfdist.size()
    mine = tf.reshape(tf.range(rank + 1, dtype=tf.float32), (-1, 1)) + 10.0 * rank

    @tf.function
    def gradient_of_sum(x):
        def replica(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                context = tf.distribute.get_replica_context()
                total = context.all_reduce("SUM", x * (1.0 + rank))
            return tape.gradient(total, x)

        return strategy.run(replica, args=(x,))

    per_rank = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(context.replica_id_in_sync_group)
    )
    return {
        "replicas": strategy.num_replicas_in_sync,
        "gather": strategy.gather(mine, axis=0).numpy().tolist(),
        "gather columns": strategy.gather(tf.transpose(mine), axis=1).numpy().tolist(),
        "sum": float(strategy.reduce("SUM", tf.reduce_sum(mine), axis=None)),
        "mean of rows": float(strategy.reduce("MEAN", mine, axis=0)[0]),
        "gradient": float(gradient_of_sum(tf.constant(1.0))),
        "value": int(per_rank),
        "expected gradient": (1.0 + rank) * size,
    }


def draws(strategy):
    """Draw without a seed: shuffles for all, shuffles of this rank's own, and steps."""
    import tensorflow as tf

    shuffled = tf.data.Dataset.range(ROWS).shuffle(ROWS)
    own = strategy.distribute_datasets_from_function(
        lambda context: tf.data.Dataset.range(ROWS).shuffle(ROWS)
    )
    step = tf.function(lambda: strategy.run(lambda: tf.random.uniform([9])))
    images = tf.data.Dataset.from_tensors(tf.reshape(tf.range(64.0), [8, 4, 2])).repeat(
        4
    )
    flip = keras.layers.RandomFlip()
    augmented = images.map(
        lambda image: tf.image.random_brightness(flip(image, training=True), 0.5),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return {
        "generators": [random.random(), np.random.rand(), *keras.random.uniform([2])],
        "augmented": [np.stack([*augmented]).tolist() for _ in range(2)],
        "shuffles": [[*map(int, shuffled)] for _ in range(2)],
        "own shuffles": [*map(int, own)],
        "steps": step().numpy().tolist(),
    }


def check_everything():
    """Run all of the above in this process."""
    strategy = tfdist.strategies.AllReduceStrategy(
        timeout_seconds=300, check_first_step="off"
    )
    return {
        "once": each_row_once(strategy),
        "parts": used_on_some_ranks(strategy),
        "loops": loops(strategy),
        "draws": draws(strategy),
        "errors": errors(strategy),
    }


@pytest.fixture(scope="module")
def ranks():
    """The results of three processes, with unequal parts, by rank."""
    return tfdist.testing.cluster(check_everything, size=3, timeout_seconds=1200).values


def test_each_row_is_seen_exactly_once(ranks):
    for values in ranks:
        for kind, seen in values["once"].items():
            assert seen == [[1.0, 1.0], [1.0, 1.0]], kind


def test_variables_that_only_some_ranks_use_are_trained_and_equal(ranks):
    for weights, changed in (values["parts"] for values in ranks):
        np.testing.assert_equal(weights, ranks[0]["parts"][0])
        assert changed == [True] * 2 * 3


def test_custom_loops_have_what_tf_distribute_gives(ranks):
    size = len(ranks)
    rows = [[10.0 * rank + i] for rank in range(size) for i in range(rank + 1)]
    for rank, values in enumerate(ranks):
        found = values["loops"]
        assert found["replicas"] == size
        assert found["gather"] == rows
        assert found["gather columns"] == [[row[0] for row in rows]]
        assert found["sum"] == sum(row[0] for row in rows)
        assert found["mean of rows"] == pytest.approx(np.mean(rows))
        assert found["gradient"] == pytest.approx(found["expected gradient"])
        assert found["value"] == rank


def test_shuffles_without_a_seed_are_alike_and_other_draws_are_not(ranks):
    by_rank = [values["draws"] for values in ranks]
    first, second = by_rank[0]["shuffles"]

    assert sorted(first) == sorted(second) == [*range(ROWS)]
    assert first != second
    for found in by_rank[1:]:
        assert found["shuffles"] == [first, second]
        assert found["own shuffles"] != by_rank[0]["own shuffles"]
        assert found["steps"] != by_rank[0]["steps"]


def test_generators_and_augmentations_without_a_seed_are_alike(ranks):
    by_rank = [values["draws"] for values in ranks]
    first, second = by_rank[0]["augmented"]

    assert first != second
    for found in by_rank[1:]:
        assert found["augmented"] == [first, second]
        assert found["generators"] == by_rank[0]["generators"]


OTHER_LENGTH = (
    r"RuntimeError: The ranks do not have the same data\. Received: 101 rows in "
    r"batches of 32 on rank 0, 100 rows in batches of 32 on rank 1\. Give every"
)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("other data", r"RuntimeError: The ranks do not see the same data: the first"),
        ("other length", OTHER_LENGTH),
        ("validation", OTHER_LENGTH),
        ("evaluate", OTHER_LENGTH),
        ("predict", OTHER_LENGTH),
        (
            "other variables",
            r"RuntimeError: The ranks have different variables in the mod",
        ),
        ("apply", r"RuntimeError: An optimizer must be applied inside of strategy.run"),
        ("outside", r"RuntimeError: The model 'sequential.*' was made outside of st"),
        ("overwritten", r"ValueError: With several processes a variable cannot be ove"),
        ("batch size", r"(?s).*tfdist: A step has its share of the rows of each batch"),
        ("stateful", r"ValueError: A stateful layer keeps a state for each row of"),
    ],
)
def test_mistakes_are_told_on_every_rank(ranks, mistake, message):
    for values in ranks:
        assert re.match(message, values["errors"][mistake]), values["errors"]
