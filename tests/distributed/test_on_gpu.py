"""Training on a graphics card; with `make test-gpu`, where there is one.

GPU_TESTS_ON_CPU=1 runs the same on processors, to check the tests themselves.
"""

import os
import re

import pytest
import test_equality
import test_equality_fit
import test_equality_layers
import test_equality_metrics
import test_equality_optimizers
import test_equality_programs
import test_equality_steps
from equality_clusters import Place

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


def devices_of_rank():
    """Return the GPU, the transport and the memory of a rank that has trained."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfdist
    from tfdist.devices.cards import cards

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
    result = cluster(devices_of_rank, timeout_seconds=240, collective="tensorflow")

    (first, transport, *_), (second, other, *_) = result.values
    assert transport == other == ("ring" if first == second else "nccl")
    # It tells which NCCL could not have, or joins.
    assert re.search("share a GPU|over NCCL" if first else "join them", result.logs[0])
    for card, _, used, device in result.values:
        if "GPU_TESTS_ON_CPU" not in os.environ:
            assert re.match(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.\d of ", *card)
            assert 0 < used < 2**30
            assert "GPU:0" in device
