"""Finding Horovod without importing it; the folders are made here."""

import sys
import sysconfig

import pytest

from tfdist.horovod_build.installed import (
    Installed,
    find_installed,
    frameworks_of,
    parts_in,
    tensorflow_of,
)

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Be in an environment that holds nothing; return its folder."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def write(site):
    (site / "horovod/tensorflow").mkdir(parents=True)
    (site / "horovod/__init__.py").write_text("raise ImportError('imported')\n")
    (site / f"horovod/tensorflow/mpi_lib{SUFFIX}").touch()
    note = '{\n"tensorflow": "2.21.0",\n"dummy": "none"\n}'
    (site / "horovod/metadata.json").write_text(note)
    info = site / "horovod-0.28.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: horovod\nVersion: 0.28.1\n")


def test_what_is_installed(site):
    write(site)

    before = set(sys.modules)
    expected = Installed("0.28.1", site / "horovod", "2.21.0", ("TensorFlow",))
    assert find_installed() == expected
    new = {name.partition(".")[0] for name in set(sys.modules) - before}
    assert new.isdisjoint({"horovod", "tensorflow"})


def test_nothing(site):
    assert find_installed() is None


@pytest.mark.parametrize("note", [None, "", '{"dummy": "none"}', '{"tensorflow": 2}'])
def test_a_horovod_that_was_not_built_for_tensorflow(tmp_path, note):
    if note is not None:
        (tmp_path / "metadata.json").write_text(note)

    assert tensorflow_of(tmp_path) is None


def test_the_libraries_of_the_frameworks(tmp_path):
    for name in ("torch/mpi_lib_v2", "mxnet/mpi_lib"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / f"{name}{SUFFIX}").touch()

    assert frameworks_of(tmp_path) == ("PyTorch", "MXNet")


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"..14GlooController..13NCCLAllreduce..", ("gloo", "nccl")),
        (b"..14GlooController..13MPIController..", ("gloo", "mpi")),
        (b"nothing", ()),
        (b"", None),
        (None, None),
    ],
)
def test_what_the_library_was_built_with(tmp_path, content, parts):
    (tmp_path / "tensorflow").mkdir()
    if content is not None:
        (tmp_path / f"tensorflow/mpi_lib{SUFFIX}").write_bytes(content)

    assert parts_in(tmp_path) == parts
