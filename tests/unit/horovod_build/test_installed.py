"""Finding TensorFlow and Horovod without importing them; the folders are made here."""

import sys
import sysconfig
from importlib import metadata

import pytest

from tfdist.horovod_build.installed import (
    BuildError,
    Installed,
    find_installed,
    find_tensorflow,
    parts_in,
)

LIBRARY = f"horovod/tensorflow/mpi_lib{sysconfig.get_config_var('EXT_SUFFIX')}"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return the folder of an environment that has no packages."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    return tmp_path


def write(site, package, version, distribution=None):
    distribution = distribution or package
    (site / package).mkdir()
    (site / f"{package}/__init__.py").write_text("raise ImportError('imported')\n")
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {distribution}\nVersion: {version}\n")


def test_the_installed_tensorflow():
    assert find_tensorflow().version == metadata.version("tensorflow")


@pytest.mark.parametrize("distribution", ["tensorflow", "tf-nightly"])
def test_tensorflow_is_found_under_each_of_its_names(site, distribution):
    write(site, "tensorflow", "2.21.0", distribution)
    with pytest.raises(BuildError, match=r"Received: TensorFlow 2.21.0, without /"):
        find_tensorflow()

    (site / "tensorflow/include").mkdir()
    assert find_tensorflow().version == "2.21.0"
    assert find_tensorflow().include == site / "tensorflow/include"
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
def test_the_installed_horovod(site, note, built_for):
    write(site, "horovod", "0.28.1")
    (site / "horovod/metadata.json").write_text(note)

    assert find_installed() == Installed("0.28.1", site / "horovod", built_for)
    assert "horovod" not in sys.modules


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"..14GlooController..13NCCLAllreduce..", ("Gloo", "NCCL")),
        (b"..14GlooController..13MPIController..", ("Gloo", "MPI")),
        (b"nothing", ()),
        (b"", None),
        (None, None),
    ],
)
def test_the_parts_of_a_library(tmp_path, content, parts):
    (tmp_path / LIBRARY).parent.mkdir(parents=True)
    if content is not None:
        (tmp_path / LIBRARY).write_bytes(content)

    assert parts_in(tmp_path / "horovod") == parts
