import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.cluster import Cluster, Task, tf_config
from tfdist.collectives import SingleCollective
from tfdist.data.sharding import Shard
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
    ("options", "error", "text"),
    [
        (
            {"collective": "mpi"},
            ValueError,
            r"collective must be one of auto, tensorflow, horovod, or a Collective\. "
            r"Received: collective='mpi'\. Use 'auto' for what fits the environment\.",
        ),
        (
            {"collective": None},
            ValueError,
            r"collective must be one of .* Received: collective=None\. Use 'auto'",
        ),
        (
            {"bucket_bytes": -1},
            ValueError,
            r"bucket_bytes must not be negative\. Received: bucket_bytes=-1\. Use 0",
        ),
        (
            {"start_timeout_seconds": 0},
            ValueError,
            r"start_timeout_seconds must be positive.*\. Received: "
            r"start_timeout_seconds=0\. Give the longest time that a healthy job may",
        ),
        (
            {"timeout_seconds": -3.0},
            ValueError,
            r"timeout_seconds must be positive.*\. Received: timeout_seconds=-3\.0\. ",
        ),
        (
            {"timeout_seconds": float("nan")},
            ValueError,
            r"timeout_seconds must be positive.*\. Received: timeout_seconds=nan\. ",
        ),
        (
            {"start_timeout_seconds": float("inf")},
            ValueError,
            r"start_timeout_seconds must be positive.*=inf\. Give",
        ),
        (
            {"compression": "fp8"},
            ValueError,
            r"compression must be one of none, fp16, bf16\. Received: "
            r"compression='fp8'\. Use 'none' to send gradients as they are\.",
        ),
    ],
)
def test_wrong_arguments_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        AllReduceStrategy(**options)


def environment_says(monkeypatch, cluster):
    monkeypatch.setenv("TF_CONFIG", tf_config.dumps(cluster))


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(workers=("a:1",), ps=("b:1",), task=Task("ps", 0)),
        Cluster(workers=("a:1",), task=Task("evaluator", 0)),
    ],
)
def test_who_does_not_train_is_refused(monkeypatch, cluster):
    environment_says(monkeypatch, cluster)

    with pytest.raises(
        ValueError,
        match=r"Only the chief and the workers may create this strategy\. Received: a "
        rf"task '{cluster.task.type}'\. Start the chief and the workers only\.",
    ):
        AllReduceStrategy()


def test_a_process_alone_needs_no_cluster():
    strategy = AllReduceStrategy()

    assert isinstance(strategy.collective, SingleCollective)
    assert strategy.num_replicas_in_sync == 1
    assert strategy.extended.should_checkpoint


def test_a_collective_of_ones_own_is_taken():
    collective = SingleCollective()

    assert AllReduceStrategy(collective).collective is collective


@pytest.mark.parametrize(
    ("options", "received"),
    [
        (
            {"start_timeout_seconds": 5},
            "start_timeout_seconds=5, timeout_seconds=600",
        ),
        (
            {"timeout_seconds": 7.5},
            r"start_timeout_seconds=300, timeout_seconds=7\.5",
        ),
    ],
)
def test_what_a_ready_made_collective_has_no_use_for_is_refused(options, received):
    with pytest.raises(
        ValueError,
        match="start_timeout_seconds and timeout_seconds are for the collective that "
        rf"the strategy makes\. Received: {received} beside a Collective\. Give them "
        r"to the Collective when you make it\.",
    ):
        AllReduceStrategy(SingleCollective(), **options)


def test_what_concerns_the_gradients_may_be_given_beside_a_collective():
    strategy = AllReduceStrategy(
        SingleCollective(), bucket_bytes=0, sparse_as_dense=True, compression="bf16"
    )

    assert strategy.num_replicas_in_sync == 1


@pytest.mark.parametrize(
    "options", [{}, {"run_eagerly": True}, {"steps_per_execution": 2}]
)
def test_alone_it_trains_as_keras_does(options):
    x, y = data()
    plain = compiled(**options)
    wanted = plain.fit(x, y, batch_size=6, epochs=2, verbose=0, shuffle=False).history
    with AllReduceStrategy().scope():
        model = compiled(**options)
    found = model.fit(x, y, batch_size=6, epochs=2, verbose=0, shuffle=False).history

    assert found == wanted
    for mine, its in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, its)
    assert model.evaluate(x, y, verbose=0) == plain.evaluate(x, y, verbose=0)
    np.testing.assert_array_equal(
        model.predict(x, verbose=0), plain.predict(x, verbose=0)
    )


def test_alone_single_batches_work():
    x, y = data()
    with AllReduceStrategy().scope():
        model = compiled()

    first = model.train_on_batch(x, y)[0]
    for _ in range(20):
        last = model.train_on_batch(x, y)[0]

    assert last < first
    assert model.test_on_batch(x, y)[0] < first
    assert model.predict_on_batch(x).shape == (20, 1)


def test_a_batch_of_fit_outside_of_keras_s_functions_is_refused():
    data = Shard(tf.ones([1, 4]), 1, 1, ())

    with pytest.raises(RuntimeError, match="must run in the function that Keras makes"):
        AllReduceStrategy().run(lambda data: data, (data,))


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


@pytest.mark.parametrize("name", ["model.keras", "model.h5", "model.weights.h5"])
def test_alone_files_are_written_whole_and_load_in_plain_keras(name, tmp_path):
    x, y = data()
    with AllReduceStrategy().scope():
        model = compiled()
    model.fit(x, y, verbose=0)
    path = tmp_path / name
    if name.endswith("weights.h5"):
        model.save_weights(path)
        loaded = compiled()
        loaded.load_weights(path)
    else:
        model.save(path)
        loaded = keras.models.load_model(path, compile=False)

    assert [file.name for file in tmp_path.iterdir()] == [name]
    for mine, its in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, its)


def test_a_tensorflow_that_has_started_is_refused(monkeypatch):
    environment_says(monkeypatch, Cluster(workers=("127.0.0.1:1", "127.0.0.1:2")))
    tf.constant(1)

    with pytest.raises(
        RuntimeError,
        match=r"The strategy must be made before TensorFlow runs its first operation\. "
        r"Received: a TensorFlow that has already started\. Make the strategy first "
        r"thing in the program, before any tensor, dataset, layer or model\.",
    ):
        AllReduceStrategy()
