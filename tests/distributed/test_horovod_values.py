"""The functions of `tfdist.horovod` between two ranks, and three for process sets."""

import threading

import numpy as np
import pytest
from horovod_jobs import MPIRUN, run

pytestmark = pytest.mark.requires("horovodrun")


def reduced_values(hvd):
    import keras
    import tensorflow as tf

    one = 1.0 + hvd.rank()
    values = {
        "array": np.array([one, 2.0], "float64"),
        "int16": np.array([one, 3.0], "int16"),
        "variable": tf.Variable([one]),
        "keras variable": keras.Variable([one]),
        "bfloat16": tf.constant([one], tf.bfloat16),
    }
    seen = {name: np.asarray(hvd.allreduce(v)).tolist() for name, v in values.items()}
    ops = {"Sum": hvd.Sum, "Min": hvd.Min, "Max": hvd.Max, "Product": hvd.Product}
    seen |= {name: float(hvd.allreduce(one, op=op)) for name, op in ops.items()}
    seen["average=False"] = float(hvd.allreduce(one, average=False))
    seen["False second"] = float(hvd.allreduce(one, False))
    seen["scaled"] = float(
        hvd.allreduce(one, prescale_factor=2.0, postscale_factor=5.0)
    )
    seen["fp16"] = float(hvd.allreduce(one, compression=hvd.Compression.fp16))
    slices = tf.IndexedSlices(tf.constant([[one]]), tf.constant([hvd.rank()]))
    seen["slices"] = hvd.allreduce(slices, op=hvd.Sum).values.numpy().tolist()
    seen["in a graph"] = float(tf.function(lambda: hvd.allreduce(tf.constant(one)))())
    return seen


REDUCED = {
    "array": [1.5, 2.0],
    "int16": [1, 3],
    "variable": [1.5],
    "keras variable": [1.5],
    "bfloat16": [1.5],
    "Sum": 3.0,
    "Min": 1.0,
    "Max": 2.0,
    "Product": 2.0,
    "average=False": 3.0,
    "False second": 3.0,
    "scaled": 15.0,
    "fp16": 1.5,
    "slices": [[1.0], [2.0]],
    "in a graph": 1.5,
}


def moved_values(hvd):
    import tensorflow as tf

    rank = hvd.rank()
    gathered = {
        dtype: hvd.allgather(tf.cast([rank] * (rank + 1), dtype)).numpy().tolist()
        for dtype in ("bool", "uint32", "int16", "bfloat16", "float32", "complex64")
    }
    return {
        "gathered": gathered,
        "broadcast": int(hvd.broadcast(np.uint32(7 + rank), root_rank=1)),
        "scattered": hvd.reducescatter(np.arange(2.0) + rank).numpy().tolist(),
        "scattered bfloat16": hvd.reducescatter(tf.cast([rank, 2.0], "bfloat16"))
        .numpy()
        .tolist(),
        "exchanged": np.asarray(hvd.alltoall(np.array([rank, 10 + rank]))).tolist(),
        "objects": hvd.allgather_object({"rank": rank}),
        "object": hvd.broadcast_object(rank, root_rank=1),
        "grouped": [
            float(tensor) for tensor in hvd.grouped_allreduce([rank + 1.0, 3.0])
        ],
    }


def broadcast_of_differing_names(hvd, **options):
    """Give rank 1's variables to all, though rank 0 has made layers more."""
    import keras
    import tensorflow as tf

    if hvd.rank() == 0:
        keras.layers.Dense(1).build((None, 2))
    keras.utils.set_random_seed(hvd.rank())
    layers = [keras.layers.Dense(2), keras.layers.Dropout(0.5), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((2,)), *layers])
    own = [tf.Variable(hvd.rank() == 1), tf.Variable(hvd.rank() + 1.5)]
    hvd.broadcast_variables([*model.variables, *own], root_rank=1, **options)
    names = [variable.path for variable in model.variables]
    return names, [np.array(variable) for variable in [*model.variables, *own]]


def two_optimizers_in_one_step(hvd):
    """Update two variables by two optimizers of one name in one graph."""
    import keras
    import tensorflow as tf

    optimizers = [hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)) for _ in range(2)]
    variables = [keras.Variable(0.0), keras.Variable(0.0)]

    @tf.function
    def step():
        for factor, optimizer, variable in zip(
            (1.0, 10.0), optimizers, variables, strict=True
        ):
            gradient = tf.constant(factor * (1 + hvd.rank()))
            optimizer.apply([gradient], [variable])

    step()
    step()
    return [float(variable) for variable in variables]


def applied_gradients(hvd):
    """Return what is applied of a dense and a sparse gradient of 1 + rank / 3."""
    import keras
    import tensorflow as tf

    def apply(**options):
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)
        variables = [keras.Variable([0.0]), keras.Variable([[0.0], [0.0]])]
        dense = tf.constant([1.0 + hvd.rank() / 3])
        place = tf.constant([hvd.rank()])
        sparse = tf.IndexedSlices(dense[None], place, tf.constant([2, 1]))
        optimizer.apply([dense, sparse], variables)
        return [-np.array(variable).ravel() for variable in variables]

    devices = {"device_dense": "/cpu:0", "device_sparse": "/cpu:0"}
    return {
        "average": apply(),
        "sum": apply(op=hvd.Sum),
        "fp16": apply(compression=hvd.Compression.fp16, sparse_as_dense=True),
        "predivided": apply(gradient_predivide_factor=2.0),
        "grouped": apply(groups=2, op=hvd.Sum, name="Mine", **devices),
    }


def clipped_by_the_users_own_method(hvd, **options):
    """Return two steps of an optimizer that clips 1 + 2 * rank to at most 2."""
    import keras
    import tensorflow as tf

    class Clipping(keras.optimizers.SGD):
        def apply_gradients(self, grads_and_vars):
            pairs = [(tf.minimum(gradient, 2.0), v) for gradient, v in grads_and_vars]
            return super().apply_gradients(pairs)

    optimizer = hvd.DistributedOptimizer(Clipping(1.0), **options)
    x = keras.Variable(0.0)

    @tf.function
    def step():
        optimizer.apply_gradients([(tf.constant(1.0 + 2 * hvd.rank()), x)])

    step()
    step()
    return float(x), int(optimizer.iterations)


def tapes(hvd):
    import keras
    import tensorflow as tf

    x, y = keras.Variable(1.0), tf.Variable([1.0, 1.0])

    def gradients(**options):
        with tf.GradientTape() as recorder:
            loss = (x + tf.reduce_sum(tf.gather(y, [hvd.rank()]))) * (1.0 + hvd.rank())
        tape = hvd.DistributedGradientTape(recorder, **options)
        of_x, of_y = tape.gradient(loss, [x, y])
        return float(of_x), tf.convert_to_tensor(of_y).numpy().tolist()

    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    with hvd.PartialDistributedGradientTape(tf.GradientTape()) as recorder:
        loss = layer(tf.ones([1, 1])) * (1.0 + hvd.rank())
    return {
        "average": gradients(),
        "sum": gradients(
            op=hvd.Sum, sparse_as_dense=True, compression=hvd.Compression.fp16
        ),
        "context": recorder.gradient(loss, layer.trainable_weights)[0].numpy().tolist(),
    }


def normalized(hvd):
    """Return what a batch of two rows, one on each rank, becomes."""
    layer = hvd.SyncBatchNormalization(momentum=0.5, epsilon=0.0)
    output = layer(np.array([[1.0 + 2 * hvd.rank()]]), training=True)
    return float(output[0, 0]), float(layer.moving_mean[0])


def tapes_of_a_rank_that_traces_alone(hvd):
    """Make two steps in a graph; rank 0 has a row less in the second."""
    import keras
    import tensorflow as tf

    x = keras.Variable(1.0)

    @tf.function
    def gradient(rows):
        with tf.GradientTape() as recorder:
            loss = tf.reduce_mean(rows) * x
        return hvd.DistributedGradientTape(recorder).gradient(loss, x)

    sizes = (8, 7 if hvd.rank() == 0 else 8)
    return [float(gradient(tf.fill([size], float(size)))) for size in sizes]


def an_optimizer_made_anew_on_one_rank(hvd):
    """Train, then go on with an optimizer that rank 0 alone has made anew."""
    import keras

    x = keras.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.apply([1.0 + hvd.rank()], [x])
    if hvd.rank() == 0:
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.apply([1.0 + hvd.rank()], [x])
    return float(x)


def see_all():
    import tfdist.horovod as hvd

    hvd.init()
    return {
        "reduced": reduced_values(hvd),
        "moved": moved_values(hvd),
        "broadcast": broadcast_of_differing_names(hvd),
        "in place": broadcast_of_differing_names(hvd, inplace=True),
        "two optimizers": two_optimizers_in_one_step(hvd),
        "applied": applied_gradients(hvd),
        "clipped": [
            clipped_by_the_users_own_method(hvd, backward_passes_per_step=passes)
            for passes in (1, 2)
        ],
        "tapes": tapes(hvd),
        "normalized": normalized(hvd),
        "traced alone": tapes_of_a_rank_that_traces_alone(hvd),
        "made anew": an_optimizer_made_anew_on_one_rank(hvd),
    }


@pytest.fixture(scope="module")
def by_rank():
    return run(see_all, timeout_seconds=1200)


def test_values_of_all_kinds_are_reduced_and_gathered(by_rank):
    for seen in by_rank:
        assert seen["reduced"] == REDUCED
        for dtype, gathered in seen["moved"]["gathered"].items():
            assert gathered == ([False, True, True] if dtype == "bool" else [0, 1, 1])


def test_values_are_moved_between_ranks(by_rank):
    for rank, seen in enumerate(by_rank):
        moved = {k: v for k, v in seen["moved"].items() if k != "gathered"}
        assert moved == {
            "broadcast": 8,
            "scattered": [0.5 + rank],
            "scattered bfloat16": [[0.5], [2.0]][rank],
            "exchanged": [10 * rank, 10 * rank + 1],
            "objects": [{"rank": 0}, {"rank": 1}],
            "object": 1,
            "grouped": [1.5, 3.0],
        }


@pytest.mark.parametrize("how", ["broadcast", "in place"])
def test_variables_are_paired_by_place_whatever_they_are_called(by_rank, how):
    (names, first), (other_names, second) = (seen[how] for seen in by_rank)

    assert names != other_names
    are_equal = [*map(np.array_equal, first, second)]
    # But for the state of the dropout.
    assert are_equal == ["seed_generator" not in name for name in names] + [True] * 2
    assert first[-2:] == [True, 2.5]


def test_two_optimizers_may_work_in_one_step(by_rank):
    assert [seen["two optimizers"] for seen in by_rank] == [[-3.0, -30.0]] * 2


@pytest.mark.parametrize(
    ("how", "factor", "tolerance"),
    [
        ("average", 0.5, 1e-6),
        ("sum", 1.0, 1e-6),
        ("fp16", 0.5, 1e-3),
        ("predivided", 0.5, 1e-6),
        ("grouped", 1.0, 1e-6),
    ],
)
def test_dense_and_sparse_gradients_are_combined(by_rank, how, factor, tolerance):
    for seen in by_rank:
        dense, sparse = seen["applied"][how]
        expected = factor * np.array([1.0, 4 / 3])
        np.testing.assert_allclose(dense, [expected.sum()], rtol=tolerance)
        np.testing.assert_allclose(sparse, expected, rtol=tolerance)
        # Between float16 and float32 something is lost, or nothing was compressed.
        assert (how == "fp16") == (abs(sparse[1] - expected[1]) > 1e-6)


def test_an_optimizers_own_method_gets_the_gradients_of_all_ranks(by_rank):
    # Two steps clip the mean, which is 2; or one step the sum of two passes.
    for seen in by_rank:
        assert seen["clipped"] == [(-4.0, 2), (-2.0, 2)]


def test_tapes_return_the_gradients_of_all_ranks(by_rank):
    for seen in by_rank:
        assert seen["tapes"] == {
            "average": (1.5, [0.5, 1.0]),
            "sum": (3.0, [1.0, 2.0]),
            "context": [[1.5]],
        }


def test_batches_of_all_ranks_are_normalized_together(by_rank):
    assert [seen["normalized"] for seen in by_rank] == [(-1.0, 1.0), (1.0, 1.0)]


def test_a_rank_may_trace_a_tape_or_make_its_optimizer_alone(by_rank):
    assert [seen["traced alone"] for seen in by_rank] == [[8.0, 7.5]] * 2
    assert [seen["made anew"] for seen in by_rank] == [-3.0, -3.0]


def work_on_after_rank_0():
    """Return what Horovod says once rank 0 has ended in good order."""
    import tensorflow as tf

    import tfdist.horovod as hvd
    from tfdist.liveness import lifeline

    lifeline._FAREWELL_SECONDS = 1.0
    hvd.init()
    hvd.broadcast_variables([tf.Variable(1.0)], root_rank=0)
    # It hears of the end of rank 0.
    for thread in threading.enumerate() if hvd.rank() == 1 else ():
        if thread.name == "tfdist lifeline 1":
            thread.join(300)
    return hvd.rank(), hvd.size()


@pytest.mark.slow
def test_a_rank_may_work_on_after_the_others_have_ended():
    assert run(work_on_after_rank_0) == [(0, 2), (1, 2)]


# Process sets, and Adasum.


def train_in_process_set():
    import keras

    import tfdist.horovod as hvd

    outer = hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[outer])
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), process_set=outer, groups=1
    )
    variables = [keras.Variable(0.0), keras.Variable([0.0])]
    optimizer.apply([hvd.rank() ** 2, [2.0 + hvd.rank() ** 2]], variables)
    # The first rank that ends shuts Horovod down on all.
    hvd.allgather_object(None)
    try:
        hvd.DistributedOptimizer(
            keras.optimizers.SGD(), process_set=hvd.ProcessSet([1, 2])
        )
    except ValueError as error:
        return [float(variables[0]), float(variables[1][0])], str(error)


@pytest.mark.slow
def test_only_the_ranks_of_a_process_set_share_gradients():
    seen = run(train_in_process_set, size=3)

    assert [values for values, _ in seen] == [[-2.0, -4.0], [-1.0, -3.0], [-2.0, -4.0]]
    assert all("process_set must be a ProcessSet that" in error for _, error in seen)


def train_with_adasum():
    import keras

    import tfdist.horovod as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Adasum)
    parallel, orthogonal = keras.Variable([0.0, 0.0]), keras.Variable([0.0, 0.0])
    along = np.array([1.0, 2.0]) * (1 + hvd.rank())
    across = np.eye(2)[hvd.rank()]
    optimizer.apply([along, across], [parallel, orthogonal])
    return [np.array(parallel).tolist(), np.array(orthogonal).tolist()]


@pytest.mark.slow
@pytest.mark.requires("mpirun")
def test_adasum_averages_parallel_gradients_and_adds_orthogonal_ones():
    assert run(train_with_adasum, launcher=MPIRUN) == [[[-1.5, -3.0], [-1.0, -1.0]]] * 2
