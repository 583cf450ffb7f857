"""`DistributedOptimizer` on two ranks: they end with the weights of one process.

Each rank trains with its half of every batch. Rank 0 also trains alone, with whole
batches and a plain optimizer. All rows run in one job, because starting costs seconds.
"""

import numpy as np
import pytest
from horovod_jobs import run

pytestmark = [pytest.mark.requires("horovodrun"), pytest.mark.slow]

EPOCHS, BATCHES, BATCH_SIZE = 2, 3, 4
WORDS, LENGTH = 6, 3

# By name: the optimizer, its arguments, and arguments of compile.
# `test_horovod_values.py` has options of Horovod.
ROWS = {
    "global_clipnorm": ("Adam", {"global_clipnorm": 0.05}, {}),
    "accumulation": ("Adam", {"gradient_accumulation_steps": 3}, {}),
    "averages": ("Adam", {"use_ema": True, "ema_overwrite_frequency": 2}, {}),
    "constant loss scale": ("SGD", {"loss_scale_factor": 64.0}, {}),
    "run_eagerly": ("Adam", {}, {"run_eagerly": True}),
    "steps_per_execution": ("Adam", {}, {"steps_per_execution": 2}),
}


def make_model(is_sparse):
    import keras

    keras.utils.set_random_seed(1)
    words = [keras.layers.Embedding(WORDS, 4), keras.layers.Flatten()]
    return keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            *(words if is_sparse else [keras.layers.Rescaling(0.1)]),
            keras.layers.Dense(5, activation="tanh"),
            keras.layers.Dense(2),
        ]
    )


def data():
    generator = np.random.default_rng(7)
    rows = BATCHES * BATCH_SIZE
    return generator.integers(0, WORDS, (rows, LENGTH)), generator.normal(
        size=(rows, 2)
    )


def trained(optimizer, x, y, batch_size, **compile_options):
    # Keras itself divides only dense gradients by a constant loss scale.
    model = make_model(is_sparse=optimizer.loss_scale_factor is None)
    model.compile(optimizer, "mse", **compile_options)
    options = {"shuffle": False, "verbose": 0}
    model.fit(x, y, batch_size=batch_size, epochs=EPOCHS, **options)
    return [weight.numpy() for weight in model.weights]


def train_rows(names):
    """Return the weights of this rank by row; on rank 0, also of a lone process."""
    import keras

    import tfdist.horovod as hvd

    hvd.init()
    keras.config.set_floatx("float64")
    x, y = data()
    half = BATCH_SIZE // hvd.size()
    own = np.arange(len(x)) // half % hvd.size() == hvd.rank()
    shared, alone = {}, {}
    for name in names:
        kind, arguments, compile_options = ROWS[name]
        make = getattr(keras.optimizers, kind)
        arguments = {"learning_rate": 0.05} | arguments
        wrapped = hvd.DistributedOptimizer(make(**arguments))
        shared[name] = trained(wrapped, x[own], y[own], half, **compile_options)
        if hvd.rank() == 0:
            plain = make(**arguments)
            alone[name] = trained(plain, x, y, BATCH_SIZE, **compile_options)
    return shared, alone


@pytest.fixture(scope="module")
def results(request):
    """Train in two processes, by the rows of the tests that were chosen."""
    tests = [item for item in request.session.items if item.module is request.module]
    rows = dict.fromkeys(test.callspec.params["row"] for test in tests)
    (first, alone), (second, _) = run(train_rows, args=([*rows],), timeout_seconds=1200)
    return first, second, alone


@pytest.mark.parametrize("row", ROWS)
def test_two_ranks_end_with_the_weights_of_one_process(results, row):
    first, second, alone = results

    for weight, expected in zip(first[row], alone[row], strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-6, atol=1e-9)
    assert len(first[row]) == len(second[row])
    assert all(map(np.array_equal, first[row], second[row]))
