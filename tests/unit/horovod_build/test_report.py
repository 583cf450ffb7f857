"""What is reported of an installed Horovod; nothing is loaded."""

from pathlib import Path

import pytest

from tfdist.horovod_build import report as module
from tfdist.horovod_build.installed import BuildError, Installed, TensorFlow
from tfdist.horovod_build.report import Report, check, mismatch

FOLDER = Path("/site/horovod")
HOROVOD = Installed("0.28.1", FOLDER, "2.21.0", ("TensorFlow",))
TENSORFLOW = TensorFlow("2.21.0", Path("/site/tensorflow"))


def raising(message):
    def fail(*_):
        raise BuildError(message)

    return fail


@pytest.fixture(autouse=True)
def everything_works(monkeypatch):
    """Be beside a Horovod that works."""
    monkeypatch.setattr(module, "find_installed", lambda: HOROVOD)
    monkeypatch.setattr(module, "find_tensorflow", lambda: TENSORFLOW)
    monkeypatch.setattr(module, "probe", lambda env: ("gloo", "mpi"))
    monkeypatch.setattr(module, "try_all_reduce", lambda parts, env: "gloo")


def test_a_horovod_that_works():
    report = check({"PATH": ""})

    assert report.problem is None
    assert report.lines() == [
        "Horovod 0.28.1  /site/horovod",
        "built for       TensorFlow 2.21.0",
        "installed       TensorFlow 2.21.0",
        "frameworks      TensorFlow (not PyTorch, MXNet)",
        "controllers     Gloo, MPI",
        "built in        Gloo, MPI (not NCCL, CUDA, ROCm, DDL, oneCCL)",
        "mpirun          no mpirun on PATH, which starts processes for it",
        "all-reduce      right, on two processes through Gloo",
    ]


def test_mpirun_is_found_on_the_path_that_is_given(tmp_path):
    (tmp_path / "mpirun").touch(mode=0o755)

    assert check({"PATH": str(tmp_path)}).mpirun == str(tmp_path / "mpirun")


def test_without_horovod(monkeypatch):
    monkeypatch.setattr(module, "find_installed", lambda: None)
    report = check({})

    assert report.lines() == []
    assert report.problem == (
        "Horovod must be installed. Received: an environment without. "
        "Run: tfdist horovod install"
    )


def test_without_tensorflow(monkeypatch):
    monkeypatch.setattr(module, "find_tensorflow", raising("Run: pip install it"))
    report = check({})

    assert report.problem == "Run: pip install it"
    assert "installed       TensorFlow none" in report.lines()


def test_a_horovod_that_does_not_load(monkeypatch):
    monkeypatch.setattr(module, "probe", raising("undefined symbol"))
    report = check({})

    assert report.problem == "undefined symbol"
    assert report.lines()[-1].startswith("frameworks")


def test_an_all_reduce_that_fails(monkeypatch):
    monkeypatch.setattr(module, "try_all_reduce", raising("no result"))
    report = check({"PATH": ""})

    assert report.problem == "no result"
    assert report.lines()[-1].startswith("mpirun")


@pytest.mark.parametrize(
    ("built_for", "frameworks", "problem"),
    [
        ("2.21.0", ("TensorFlow",), None),
        ("2.18.0", ("TensorFlow",), "Received: one for 2.18.0, beside TensorFlow 2.21"),
        (None, (), "Received: Horovod 0.28.1 in /site/horovod, without. Run"),
        ("2.21.0", ("PyTorch",), "with its part for TensorFlow"),
    ],
)
def test_a_horovod_that_does_not_fit(built_for, frameworks, problem):
    found = mismatch(Installed("0.28.1", FOLDER, built_for, frameworks), TENSORFLOW)

    if problem is None:
        assert found is None
    else:
        assert problem in found


def test_nothing_is_built_in():
    report = Report(HOROVOD, TENSORFLOW, parts=())

    assert report.lines()[4] == "controllers     none (not Gloo, MPI)"
