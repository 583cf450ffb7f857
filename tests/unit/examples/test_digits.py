"""The digits example in one process: its data, and what it says in the end.

That it trains well, alone and on several ranks, is in tests/distributed/test_digits.py.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import flagsaver
from sklearn.datasets import load_digits

import tfdist

PROGRAM = Path(__file__).parents[3] / "examples" / "digits_allreduce.py"


@pytest.fixture(scope="module")
def example():
    """The program as a module; only once, because it defines flags."""
    spec = importlib.util.spec_from_file_location("digits_allreduce", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def digits(example, tmp_path_factory):
    """The two splits as arrays, and what is known about them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFDS_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        splits, info = example.load("digits")
    return [[*split.as_numpy_iterator()] for split in splits], info


class Collective:
    """A collective with one rank, or with a peer that sends `peer`."""

    def __init__(self, *peer):
        self.rank, self.size, self.peer = 0, 1, peer

    def exchange(self, name, value):
        return [value, *self.peer] if name == "weights" else [value]


@pytest.fixture
def train(example, monkeypatch):
    """Return a function that runs the program on a few random digits."""
    generator = np.random.default_rng(1)
    images = generator.integers(0, 256, (40, 8, 8, 1), dtype="uint8")
    dataset = tf.data.Dataset.from_tensor_slices((images, images[:, 0, 0, 0] % 10))
    info = type("Info", (), {"features": {"image": images[0]}})

    def run(collective, *arguments):
        strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
        strategy.collective = collective
        created = []
        monkeypatch.setattr(
            tfdist.strategies,
            "create",
            lambda name: created.append(name) or strategy,
            raising=False,
        )
        monkeypatch.setattr(example, "load", lambda name: ((dataset, dataset), info))
        flags = example.flags.FLAGS
        with flagsaver.flagsaver():
            flags.unparse_flags()
            flags(["digits_allreduce.py", *arguments])
            example.main([])
        return created

    return run


def test_the_splits_hold_every_digit_once(digits):
    (train, test), info = digits
    expected = load_digits()

    assert [len(train), len(test)] == [1437, 360]
    assert info.splits["train"].num_examples == 1437
    found = sorted((image.tobytes(), int(label)) for image, label in train + test)
    images = np.round(expected.images * 255 / 16).astype("uint8")
    assert found == sorted(
        (image.tobytes(), int(label))
        for image, label in zip(images, expected.target, strict=True)
    )


def test_no_network_is_said_in_two_lines(example, monkeypatch, tmp_path):
    def load(*_, **__):
        raise OSError("Failed to resolve 'storage.googleapis.com'")

    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(example.tfds, "load", load)

    with pytest.raises(
        SystemExit,
        match=r"^The dataset 'mnist' could not be prepared in .*: Failed to resolve "
        r"'storage\.googleapis\.com'\nWithout a network, use --dataset digits\.$",
    ):
        example.load("mnist")


def test_the_last_line_names_the_weights(train, capsys):
    created = train(Collective(), "--epochs=2", "--batch_size=8")

    *_, accuracy, last = capsys.readouterr().out.splitlines()
    assert created == ["all_reduce"]
    assert accuracy.startswith("test accuracy: 0.")
    words, _, digest = last.rpartition(" ")
    assert words == "all 1 ranks hold identical weights: sha256"
    assert len(digest) == 64


def test_ranks_with_different_weights_end_the_program_with_an_error(train, capsys):
    with pytest.raises(
        SystemExit,
        match=r"^the ranks hold different weights, by rank: "
        r"\['[0-9a-f]{64}', 'another'\]$",
    ):
        train(Collective("another"), "--epochs=1")

    assert "identical" not in capsys.readouterr().out
