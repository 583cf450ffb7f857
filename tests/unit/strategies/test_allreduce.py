import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.cluster import Cluster, tf_config
from tfdist.collectives.single import SingleCollective
from tfdist.strategies import AllReduceStrategy


def data():
    random = np.random.default_rng(3)
    x = random.normal(size=(20, 4)).astype("float32")
    return x, x[:, :1] - x[:, 1:2]


def compiled(**options):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse", metrics=["mae"], **options)
    return model


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"bucket_bytes": -1},
            r"bucket_bytes must not be negative\. Received: bucket_bytes=-1\. Use 0",
        ),
        (
            {"start_timeout_seconds": 0},
            r"start_timeout_seconds must be positive and finite\. Received: "
            r"start_timeout_seconds=0\. Give the longest time that a healthy job may",
        ),
        (
            {"timeout_seconds": float("nan")},
            r"timeout_seconds must be positive and finite\. Received: "
            r"timeout_seconds=nan\.",
        ),
        (
            {"compression": "fp8"},
            r"compression must be one of none, fp16, bf16, powersgd-1, "
            r"powersgd, powersgd-4\. Received: "
            r"compression='fp8'\. Use 'none' to send gradients as they are\.",
        ),
        (
            {"shard_embeddings": 0},
            r"shard_embeddings must be a positive number of bytes, or None\. Received: "
            r"shard_embeddings=0\. Use 64 \* 2\*\*20 to divide tables of 64 MiB",
        ),
        (
            {"shard_embeddings": True},
            r"Received: shard_embeddings=True\. Use 64",
        ),
        (
            {"shard_embeddings": 8, "sparse_as_dense": True},
            r"sends single rows to the ranks that have them\. Received: "
            r"shard_embeddings=8 with virtual_ranks=None and sparse_as_dense=True\. ",
        ),
        (
            {"shard_embeddings": 8, "virtual_ranks": 4},
            r"shard_embeddings=8 with virtual_ranks=4 and .* Leave out those that need",
        ),
        (
            {"collective": SingleCollective(), "timeout_seconds": 7.5},
            "start_timeout_seconds and timeout_seconds are for the collective that the "
            r"strategy makes\. Received: {'start_timeout_seconds': 300.*, "
            r"'timeout_seconds': 7\.5} together with a Collective\. Give them to",
        ),
    ],
)
def test_wrong_arguments_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        AllReduceStrategy(**options)


def test_a_process_alone_needs_no_cluster():
    strategy = AllReduceStrategy()

    assert isinstance(strategy.collective, SingleCollective)
    assert strategy.num_replicas_in_sync == 1
    assert strategy.extended.should_checkpoint


def test_a_given_collective_is_used():
    collective = SingleCollective()
    options = {"bucket_bytes": 0, "sparse_as_dense": True, "compression": "bf16"}

    assert AllReduceStrategy(collective, **options).collective is collective


def test_alone_it_trains_as_keras_does():
    x, y = data()
    options = {"steps_per_execution": 2}
    plain = compiled(**options)
    wanted = plain.fit(x, y, batch_size=6, epochs=2, verbose=0, shuffle=False).history
    with AllReduceStrategy().scope():
        model = compiled(**options)
    found = model.fit(x, y, batch_size=6, epochs=2, verbose=0, shuffle=False).history

    assert found == wanted
    for mine, its in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, its)
    assert model.evaluate(x, y, verbose=0) == plain.evaluate(x, y, verbose=0)
    assert model.train_on_batch(x, y) == plain.train_on_batch(x, y)
    np.testing.assert_array_equal(
        model.predict(x, verbose=0), plain.predict(x, verbose=0)
    )


def test_alone_a_custom_loop_works():
    strategy = AllReduceStrategy()
    with strategy.scope():
        variable = tf.Variable(1.0)
    dataset = strategy.experimental_distribute_dataset(
        tf.data.Dataset.range(4).batch(2)
    )

    @tf.function
    def step(batch):
        def replica(batch):
            variable.assign_add(tf.reduce_sum(tf.cast(batch, tf.float32)))
            return variable.read_value()

        return strategy.reduce("SUM", strategy.run(replica, (batch,)), axis=None)

    assert [float(step(batch)) for batch in dataset] == [2.0, 7.0]


def test_alone_a_file_is_written_whole_and_loads_in_plain_keras(tmp_path):
    x, y = data()
    with AllReduceStrategy().scope():
        model = compiled()
    model.fit(x, y, verbose=0)
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.models.load_model(path, compile=False)

    assert [*tmp_path.iterdir()] == [path]
    for mine, its in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, its)


def test_a_tensorflow_that_has_started_is_refused(monkeypatch):
    cluster = Cluster(workers=("127.0.0.1:1", "127.0.0.1:2"))
    monkeypatch.setenv("TF_CONFIG", tf_config.dumps(cluster))
    tf.constant(1)

    with pytest.raises(
        RuntimeError,
        match=r"The strategy must be made before TensorFlow runs its first operation\. "
        r"Received: a TensorFlow that has already started\. Make the strategy first "
        r"thing in the program, before any tensor, dataset, layer or model, and make",
    ):
        AllReduceStrategy()
