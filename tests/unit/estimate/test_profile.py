"""The memory of a process on a GPU; a fake of TensorFlow's functions stands for it."""

import pytest
import tensorflow as tf

from tfdist.compat import tensorflow as compat
from tfdist.estimate import Measured
from tfdist.estimate.profile import Memory, peak_bytes, reset_peak, resident_bytes
from tfdist.estimate.report import figures_of, text_of

MIB = 2**20


@pytest.fixture
def gpu(monkeypatch):
    """Let this process have a GPU; return its memory."""
    memory = {"current": 5, "peak": 9}
    device = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")

    def reset(name):
        assert name == "GPU:0"
        memory["peak"] = memory["current"]

    monkeypatch.setattr(compat, "has_started", lambda: True)
    for owner, name, function in (
        (tf.config, "get_visible_devices", lambda kind: [device]),
        (tf.config, "get_logical_device_configuration", lambda device: None),
        (tf.config.experimental, "get_memory_info", {"GPU:0": memory}.get),
        (tf.config.experimental, "reset_memory_stats", reset),
    ):
        monkeypatch.setattr(owner, name, function)
    return memory


def test_without_a_gpu_the_memory_is_that_of_the_host():
    # A Python with TensorFlow has more than this.
    assert 50 * MIB < resident_bytes() <= peak_bytes()


def test_with_a_gpu_the_memory_is_what_tensorflow_has_there(gpu):
    assert (resident_bytes(), peak_bytes()) == (5, 9)
    reset_peak()
    assert peak_bytes() == 5


def test_before_tensorflow_starts_nothing_is_on_the_gpu(gpu, monkeypatch):
    monkeypatch.setattr(compat, "has_started", lambda: False)

    assert (resident_bytes(), peak_bytes()) == (0, 0)


@pytest.mark.parametrize(
    ("is_of_gpu", "head"),
    [(False, "memory of a rank, MiB"), (True, "GPU memory of a rank, MiB")],
)
def test_an_estimate_says_whose_memory_it_is(is_of_gpu, head, make_profile):
    memory = Memory(0, 8 * MIB, 16 * MIB, 8 * MIB, 132 * MIB, is_of_gpu=is_of_gpu)
    measured = Measured({1: [make_profile(memory=memory)]}, {})
    text = text_of(
        measured, [1], "train.py", steps=10, table=lambda head, rows: head[0]
    )

    assert head in text.splitlines()
    assert figures_of(measured, [1])["is_memory_of_gpu"] == is_of_gpu
