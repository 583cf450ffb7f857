"""The data that the examples of digits share."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

PROGRAM = Path(__file__).parents[3] / "examples" / "digits.py"


@pytest.fixture(scope="module")
def example():
    """The program as a module; only once, because it defines flags."""
    spec = importlib.util.spec_from_file_location("digits", PROGRAM)
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


@pytest.mark.slow
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
