"""The programs that measure, in this process."""

import socket
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest

from tfdist.benchmarks.allreduce_program import exchange
from tfdist.benchmarks.models import build_cnn, build_dense, make_images, make_rows
from tfdist.benchmarks.training_program import measure


@pytest.mark.parametrize("collective", [None, "tensorflow"])
def test_training_leaves_out_the_block_that_compiles(collective, turn):
    blocks = measure(
        turn,
        collective=collective,
        batch_size=4,
        steps=2,
        repeats=3,
        compression="none",
    )

    assert [len(block) for block in blocks] == [1, 1, 1]
    assert min(min(block) for block in blocks) > 0
    assert turn.events == ["take", "pass on"] * 4


@pytest.mark.parametrize(
    ("build", "make", "weights"),
    [
        # 3x3x1x32+32, 3x3x32x64+64, 12x12x64x128+128, 128x10+10.
        (build_cnn, make_images, 320 + 18_496 + 1_179_776 + 1_290),
        (build_dense, make_rows, 235_146),
    ],
)
def test_models_and_their_data(build, make, weights):
    model = build(keras)
    batches = [*make(3000).take(3).as_numpy_iterator()]

    assert model.count_params() == weights
    assert model.input_shape[1:] == batches[2][0].shape[1:]
    assert [len(labels) for _, labels in batches] == [3000] * 3
    # Every process draws the same.
    again, _ = next(make(3000).as_numpy_iterator())
    np.testing.assert_array_equal(batches[0][0], again)


def test_both_sides_send_more_than_the_system_buffers():
    left, right = socket.socketpair()
    with left, right, ThreadPoolExecutor() as threads:
        for size in (4, 8 * 2**20, 4):
            other = threads.submit(exchange, right, bytes(size))
            exchange(left, bytes(size))
            other.result()
        with pytest.raises(BlockingIOError):
            left.recv(1)
