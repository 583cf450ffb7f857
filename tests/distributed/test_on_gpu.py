"""Training on a graphics card; with `make test-gpu`, where there is one.

GPU_TESTS_ON_CPU=1 runs the same on processors, to check the tests themselves.
"""

import hashlib
import os
import re
from time import perf_counter

import parameter_server_jobs
import pytest
import test_equality
import test_equality_fit
import test_equality_layers
import test_equality_metrics
import test_equality_optimizers
import test_equality_programs
import test_equality_steps
import test_estimate
from equality_clusters import Place
from launcher import COMMAND, printed_by

from tfdist.testing import cluster

pytestmark = [pytest.mark.gpu, pytest.mark.new_processes]

MODULES = (
    test_equality,
    test_equality_fit,
    test_equality_layers,
    test_equality_metrics,
    test_equality_optimizers,
    test_equality_programs,
    test_equality_steps,
)
ROWS = {
    f"{module.__name__}, {name}": row
    for module in MODULES
    for name, row in module.ROWS.items()
}
# Steps that compile.
SKIPPED = 2
# With several cards, NCCL joins them; on one, the processes share it.
PLACES = [
    Place(1, "tensorflow"),
    Place(2, "tensorflow"),
    Place(2, "mpi"),
    Place(1, "tensorflow", "MirroredStrategy", 2),
]


@pytest.mark.parametrize(
    ("row", "column"),
    [(row, PLACES[number % len(PLACES)]) for number, row in enumerate(ROWS)],
    ids=str,
)
def test_a_row_of_the_matrix_ends_as_in_plain_keras(cells, row, column):
    cells.check(row, column)


def tables_of_rank():
    """Return the hash of what remains of tables whose rows come often in a batch."""
    import keras
    import numpy as np

    import tfdist

    strategy = tfdist.strategies.AllReduceStrategy()
    rng = np.random.default_rng(0)
    tokens, targets = rng.integers(20, size=(64, 200)), rng.random((64, 1))
    hashes = {}
    for name, optimizer in {
        "SGD": keras.optimizers.SGD(0.1),
        "SGD, momentum": keras.optimizers.SGD(0.1, momentum=0.9),
        "Adam": keras.optimizers.Adam(),
        "Adagrad": keras.optimizers.Adagrad(),
        "Adam, XLA": keras.optimizers.Adam(),
    }.items():
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.layers.Embedding(20, 64),
                    keras.layers.GlobalAveragePooling1D(),
                    keras.layers.Dense(1),
                ]
            )
            model.compile(optimizer, "mse", jit_compile="XLA" in name)
        model.fit(tokens, targets, batch_size=32, epochs=10, verbose=0)
        values = [np.asarray(variable) for variable in model.variables]
        values += [np.asarray(variable) for variable in optimizer.variables]
        content = b"".join(value.tobytes() for value in values)
        hashes[name] = hashlib.sha256(content).hexdigest()
    return hashes


def test_all_ranks_add_the_rows_of_a_table_in_the_same_order():
    first, other = cluster(tables_of_rank, timeout_seconds=1200).values

    assert len(first) == 5
    assert first == other


def rates_of_an_epoch():
    """Return the rate that `Throughput` logs, and that of a clock beside it."""
    import keras
    import numpy as np

    import tfdist

    class Clock(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == SKIPPED:
                self._began = perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            self.seconds = perf_counter() - self._began

    with tfdist.strategies.AllReduceStrategy().scope():
        model = keras.Sequential(
            [keras.layers.Dense(2048, activation="relu") for _ in range(8)]
        )
        model.compile("sgd", "mse")
    x = np.ones((40 * 256, 2048), "float32")
    clock, counted = Clock(), tfdist.callbacks.Throughput(skip_steps=SKIPPED)
    # What Throughput has waited for lies behind the clock, too.
    history = model.fit(x, x, batch_size=256, verbose=0, callbacks=[counted, clock])
    rate = (40 - SKIPPED) * 256 / clock.seconds
    return history.history["examples_per_second"][0], rate


def test_throughput_counts_what_the_card_has_done():
    ((said, right),) = cluster(rates_of_an_epoch, size=1, timeout_seconds=1200).values

    assert said == pytest.approx(right, rel=0.05)


def train_with_servers():
    """Train with parameter servers; return the losses and the GPUs of all processes."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfdist

    keras.utils.set_random_seed(1)
    with tfdist.strategies.ParameterServerStrategy(consistency="sync").scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones((16, 4))
    history = model.fit(x, x[:, :1], batch_size=8, epochs=3, verbose=0).history
    return history["loss"], [gpu.name for gpu in tf.config.list_logical_devices("GPU")]


def test_of_parameter_servers_only_the_worker_has_a_card():
    losses, gpus = parameter_server_jobs.run(train_with_servers, workers=1, ps=1)

    assert losses[2] < losses[0]
    if "GPU_TESTS_ON_CPU" not in os.environ:
        assert gpus == ["/job:worker/replica:0/task:0/device:GPU:0"]


def test_an_estimate_of_a_script_that_xla_compiles(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(test_estimate.SCRIPT)
    job = ("-np", "1", "--steps", "4", script, "own")
    printed = printed_by(COMMAND, "estimate", *job)

    is_of_gpu = "GPU memory, MiB" in printed
    assert is_of_gpu == ("GPU_TESTS_ON_CPU" not in os.environ)


def devices_of_rank():
    """Return the GPU, the transport and the memory of a rank that has trained."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfdist
    from tfdist.devices import cards

    strategy = tfdist.strategies.AllReduceStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    model.fit(np.ones((16, 8)), np.ones((16, 1)), batch_size=8, verbose=0)
    device = tfdist.devices.logical("GPU")
    used = tf.config.experimental.get_memory_info(device[0])["peak"] if device else 0
    return (
        cards(),
        strategy.collective.communication,
        used,
        model.variables[0].value.device,
    )


def test_ranks_have_cards_and_share_them_over_a_ring_only():
    result = cluster(devices_of_rank, timeout_seconds=1200, collective="tensorflow")

    (first, transport, *_), (second, other, *_) = result.values
    assert transport == other == ("ring" if first == second else "nccl")
    # It tells which NCCL could not have, or joins.
    assert re.search("share a GPU|over NCCL" if first else "join them", result.logs[0])
    for card, _, used, device in result.values:
        if "GPU_TESTS_ON_CPU" not in os.environ:
            assert re.match(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.\d of ", *card)
            assert 0 < used < 2**30
            assert "GPU:0" in device
