"""`HorovodStrategy`: with its options N processes end with the weights of one.

Starting takes seconds, so one job trains with all options, one after the other.
"""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from horovod_jobs import MPIRUN, run

from tfdist.testing import cluster

pytestmark = [pytest.mark.requires("horovodrun"), pytest.mark.slow]

SIZE = 3
# Batches of 10 rows end in one of a single row: two of three ranks have none.
ROWS, BATCH, EPOCHS = 101, 10, 2
PATHS = ["dense/kernel", "dense_1/kernel"]

DENSE = {
    "by default": {},
    "predivided": {"gradient_predivide_factor": 3.0},
    "a number of groups": {"groups": 2},
    "groups by path": {"groups": [PATHS]},
    "all at once": {"gradient_predivide_factor": 0.5, "groups": [PATHS]},
}
SPARSE = {
    "sparse": {},
    "sparse, predivided": {"gradient_predivide_factor": 3.0},
}


def data(rows=ROWS):
    """Two classes that eight numbers tell apart, or the sum of three words."""
    random = np.random.default_rng(7)
    x = random.normal(size=(rows, 8))
    return x, (x[:, :1] + x[:, 1:2] ** 2 > 0.5).astype("float64")


def dense_model():
    import keras

    inputs = keras.Input((8,), dtype="float64")
    layer = keras.layers.Dense(6, "tanh", name="dense", dtype="float64")
    last = keras.layers.Dense(1, "sigmoid", name="dense_1", dtype="float64")
    return keras.Model(inputs, last(layer(inputs)))


def sparse_model():
    import keras

    inputs = keras.Input((8,), dtype="float64")
    words = keras.layers.Lambda(lambda x: keras.ops.cast(x > 0, "int32"))(inputs)
    vectors = keras.layers.Embedding(3, 4, dtype="float64")(words)
    mean = keras.layers.GlobalAveragePooling1D(dtype="float64")(vectors)
    outputs = keras.layers.Dense(1, "sigmoid", dtype="float64")(mean)
    return keras.Model(inputs, outputs)


def trained(strategy, model=dense_model, optimizer="Adam", rate=0.01):
    """Train under a strategy, or on one process under none; return the weights."""
    from contextlib import nullcontext

    import keras

    x, y = data()
    keras.utils.set_random_seed(1)
    with nullcontext() if strategy is None else strategy.scope():
        model = model()
        optimizer = getattr(keras.optimizers, optimizer)(rate)
        loss = keras.losses.BinaryCrossentropy(dtype="float64")
        model.compile(optimizer, loss, jit_compile=False)
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0)
    return model.get_weights()


def message_of(function, *args, **options):
    try:
        function(*args, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def all_options():
    from tfdist.strategies import AllReduceStrategy, HorovodStrategy

    found = {"automatic": trained(AllReduceStrategy())}
    for name, options in DENSE.items():
        found[name] = trained(HorovodStrategy(**options))
    for name, options in SPARSE.items():
        found[name] = trained(HorovodStrategy(**options), sparse_model)
    found["fp16"] = trained(HorovodStrategy(compression="fp16"), rate=0.001)
    sgd = {"optimizer": "SGD", "rate": 0.1}
    for name, model in (("sum", dense_model), ("sum of sparse", sparse_model)):
        found[name] = trained(HorovodStrategy(op="sum"), model, **sgd)
    # Adam squares the rows of one word one by one, and their sum as one.
    strategy = HorovodStrategy(sparse_as_dense=True)
    found["sparse as dense"] = trained(strategy, sparse_model, **sgd)
    return found


@pytest.fixture(scope="module")
def job():
    return cluster(all_options, size=SIZE, timeout_seconds=1200, collective="horovod")


@pytest.fixture(scope="module")
def alone():
    """What one process ends with, for each model and optimizer."""
    return {
        "dense": trained(None),
        "sparse": trained(None, sparse_model),
        "sparse as dense": trained(None, sparse_model, "SGD", 0.1),
        "slow": trained(None, rate=0.001),
        "sum": trained(None, dense_model, "SGD", SIZE * 0.1),
        "sum of sparse": trained(None, sparse_model, "SGD", SIZE * 0.1),
    }


def assert_equal(weights, wanted, tolerance=1e-6):
    for one, other in zip(weights, wanted, strict=True):
        largest = np.abs(other).max()
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=1e-6 * largest)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("automatic", "dense"),
        *((name, "dense") for name in DENSE),
        *((name, "sparse") for name in SPARSE),
        *((name, name) for name in ("sparse as dense", "sum", "sum of sparse")),
    ],
)
def test_three_processes_end_with_the_weights_of_one(name, wanted, job, alone):
    assert_equal(job.values[0][name], alone[wanted])


def test_compressed_gradients_end_close_to_it(job, alone):
    for one, other in zip(job.values[0]["fp16"], alone["slow"], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-2)
        # They were compressed, after all.
        assert not np.array_equal(one, other)


def test_all_ranks_end_with_the_same_bits(job):
    for found in job.values[1:]:
        for name, weights in found.items():
            for one, other in zip(weights, job.values[0][name], strict=True):
                np.testing.assert_array_equal(one, other, err_msg=name)


# Process sets.


def parted():
    """Two ranks train together, and one by itself."""
    import horovod.tensorflow as hvd

    from tfdist.strategies import HorovodStrategy

    pair, single = hvd.ProcessSet([0, 2]), hvd.ProcessSet([1])
    unknown = hvd.ProcessSet([0, 1])
    hvd.init(process_sets=[pair, single])
    mine, other = (single, pair) if hvd.rank() == 1 else (pair, single)
    errors = [
        message_of(HorovodStrategy, process_set=other),
        message_of(HorovodStrategy, process_set=unknown),
    ]
    strategy = HorovodStrategy(process_set=mine)
    place = strategy.collective.rank, strategy.collective.size
    weights = trained(strategy), trained(strategy, sparse_model)
    return place, weights, errors


@pytest.fixture(scope="module")
def sets():
    return cluster(parted, size=3, timeout_seconds=1200, collective="horovod")


def test_the_ranks_of_a_process_set_train_together(sets, alone):
    assert [place for place, _, _ in sets.values] == [(0, 2), (0, 1), (1, 2)]
    for _, (dense, sparse), _ in sets.values:
        assert_equal(dense, alone["dense"])
        assert_equal(sparse, alone["sparse"])


def test_a_process_set_without_this_rank_is_refused(sets):
    for rank, (_, _, errors) in enumerate(sets.values):
        assert re.match(
            r"ValueError: process_set must include the process that trains with it\. "
            rf"Received: ProcessSet\(.*\) on rank {rank}\. Give each rank the set that",
            errors[0],
        )
        assert re.match(
            r"ValueError: process_set must be a ProcessSet that Horovod knows\. Recei"
            r"ved: ProcessSet\(process_set_id=None, ranks=\[0, 1\].*\)\. Give it",
            errors[1],
        )


def one_makes_no_strategy(pipe):
    import horovod.tensorflow as hvd

    from tfdist.strategies import HorovodStrategy

    hvd.init()
    # Who opens the pipe to read waits for who opens it to write.
    if hvd.rank() == 1:
        return Path(pipe).read_text()
    message = message_of(HorovodStrategy, start_timeout_seconds=1.0)
    Path(pipe).write_text("told")
    return message


def test_a_rank_that_makes_no_strategy_is_not_waited_for_for_ever(tmp_path):
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)

    message, told = cluster(
        one_makes_no_strategy, args=(pipe,), collective="horovod"
    ).values

    assert told == "told"
    assert re.match(
        r"TimeoutError: Not every rank takes part in the training\. Received: nothing "
        r"from some of the 2 ranks after 1 s, on rank 0\. Make the strategy, or ",
        message,
    )


# Adasum.


def linear():
    """Numbers that float32, which Keras makes of data, holds exactly."""
    random = np.random.default_rng(3)
    return [np.round(random.normal(size=(17, n)) * 64) / 64 for n in (4, 1)]


def adasum_steps(run_eagerly):
    """Train three batches, the last with a rank that has no rows."""
    import keras

    from tfdist.strategies import HorovodStrategy

    strategy = HorovodStrategy(op="adasum")
    keras.utils.set_random_seed(1)
    with strategy.scope():
        inputs = keras.Input((4,), dtype="float64")
        layer = keras.layers.Dense(1, dtype="float64")
        model = keras.Model(inputs, layer(inputs))
        loss = keras.losses.MeanSquaredError(dtype="float64")
        # A rate that float32 holds exactly.
        sgd = keras.optimizers.SGD(0.125)
        model.compile(sgd, loss, run_eagerly=run_eagerly, jit_compile=False)
    before = model.get_weights()
    x, y = linear()
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    return before, model.get_weights()


def adasum(a, b):
    """Combine two gradients as the formula of the paper does."""
    dot = np.sum(a * b)
    of_a, of_b = (np.sum(g * g) for g in (a, b))
    a_part = 1 - dot / (2 * of_a) if of_a else 1.0
    b_part = 1 - dot / (2 * of_b) if of_b else 1.0
    return a_part * a + b_part * b


def gradients_by_hand(x, y, kernel, bias):
    """Return those of the mean squared error; zero of no rows."""
    error = 2 * (x @ kernel + bias - y) / max(len(x), 1)
    return x.T @ error, error.sum(axis=0)


def steps_by_hand(kernel, bias):
    x, y = linear()
    for start in (0, 8, 16):
        rows = min(8, 17 - start)
        middle, stop = start + rows // 2, start + rows
        one, other = (
            gradients_by_hand(x[a:b], y[a:b], kernel, bias)
            for a, b in ((start, middle), (middle, stop))
        )
        kernel = kernel - 0.125 * adasum(one[0], other[0])
        bias = bias - 0.125 * adasum(one[1], other[1])
    return kernel, bias


def adasum_job():
    return [adasum_steps(run_eagerly) for run_eagerly in (False, True)]


@pytest.mark.requires("mpirun")
def test_adasum_steps_are_those_of_its_formula():
    one, other = run(adasum_job, launcher=MPIRUN, timeout_seconds=1200)

    for (before, after), (_, after_on_other) in zip(one, other, strict=True):
        for found, wanted in zip(after, steps_by_hand(*before), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-9)
        assert all(map(np.array_equal, after, after_on_other))
