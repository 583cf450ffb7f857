"""Finding TensorFlow and Horovod without importing them."""

import sys
from importlib import metadata

import pytest

from tfdist.horovod_build.installed import (
    BuildError,
    Installed,
    find_installed,
    find_tensorflow,
    parts_in,
)


def test_the_installed_tensorflow():
    assert find_tensorflow().version == metadata.version("tensorflow")


@pytest.mark.parametrize("distribution", ["tensorflow", "tf-nightly"])
def test_tensorflow_is_found_under_each_of_its_names(write, distribution):
    include = write("tensorflow", "2.21.0", distribution) / "include"
    with pytest.raises(BuildError, match=r"Received: TensorFlow 2.21.0, without /"):
        find_tensorflow()

    include.mkdir()
    assert find_tensorflow().version == "2.21.0"
    assert find_tensorflow().include == include
    assert "tensorflow" not in sys.modules


@pytest.mark.usefixtures("site")
def test_an_empty_environment():
    assert find_installed() is None
    with pytest.raises(BuildError, match="Run: pip install tensorflow") as raised:
        find_tensorflow()
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("note", "built_for"),
    [
        ('{\n"tensorflow": "2.21.0",\n"dummy": "none"\n}', "2.21.0"),
        ('{"dummy": "none"}', None),
        ("", None),
    ],
)
def test_the_installed_horovod(write, note, built_for):
    folder = write("horovod", "0.28.1")
    (folder / "metadata.json").write_text(note)

    assert find_installed() == Installed("0.28.1", folder, built_for)
    assert "horovod" not in sys.modules


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"..14GlooController..13NCCLAllreduce..", ("Gloo", "NCCL")),
        (b"..14GlooController..13MPIController..", ("Gloo", "MPI")),
        (b"nothing", ()),
        (b"", None),
    ],
)
def test_the_parts_of_a_library(horovod, content, parts):
    assert parts_in(horovod(content).folder) == parts


def test_without_a_library_there_are_no_parts(write):
    assert parts_in(write("horovod", "0.28.1")) is None
