"""The choice of MPI for the ranks of a job."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.launch import mpi, placeholder
from tfdist.launch.job import Job
from tfdist.launch.mpi import choose, uses_gpu

ALIKE = Job(("/bin/prog",), size=2)


@pytest.mark.parametrize(
    ("job", "environ", "cores", "can_use_mpi", "engine"),
    [
        (ALIKE, {}, 2, True, "mpi"),
        (ALIKE, {}, 2, False, "tensorflow"),
        (ALIKE, {}, 1, True, "tensorflow"),
        (ALIKE, {"SLURM_JOB_ID": "7"}, 2, True, "tensorflow"),
        (Job(("/bin/prog",), size=1), {}, 2, True, "tensorflow"),
        (Job(("/bin/prog",), workers=2, ps=1), {}, 8, True, "tensorflow"),
    ],
)
def test_several_ranks_that_are_alike_are_joined_by_mpi(
    job, environ, cores, can_use_mpi, engine
):
    assert choose(job, environ, cores=cores, can_use_mpi=can_use_mpi) == engine


@pytest.mark.parametrize(
    ("device", "visible", "is_used"),
    [
        ("nvidia0", None, True),
        ("kfd", None, True),
        ("dxg", "0", True),
        ("nvidia0", "", False),
        ("nvidia0", "-1", False),
        ("nvidiactl", None, False),
        ("null", None, False),
    ],
)
def test_a_gpu_that_is_visible_is_used(device, visible, is_used, tmp_path):
    (tmp_path / device).touch()
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    assert uses_gpu(environ, tmp_path) is is_used


def test_what_a_killed_launcher_has_left_in_memory_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(mpi, "_MEMORY", str(tmp_path))
    names = ("tfdist-mpi-left", "tfdist-mpi-held", "tfdist-mpi-new", "other")
    left, held, new, other = (tmp_path / name for name in names)
    for folder in (left, held, new, other):
        folder.mkdir()
        (folder / "segment").touch()
    pipe = tmp_path / "tfdist-mpi-pipe"
    os.mkfifo(pipe)
    for folder in (left, held, other, pipe):
        os.utime(folder, (1, 1))
    lock = os.open(held, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)

    with mpi._folder(0) as name:
        assert set(tmp_path.iterdir()) == {held, new, other, pipe, Path(name)}
        os.utime(name, (1, 1))
        mpi._remove_if_left(Path(name))
        assert Path(name).is_dir()
    os.close(lock)

    assert set(tmp_path.iterdir()) == {held, new, other, pipe}


def test_a_line_that_mpirun_has_mixed_with_another_is_ignored():
    """A placeholder repeats it."""
    command = [sys.executable, "-I", "-S", placeholder.__file__]
    env = {"PMIX_RANK": "3", "OMPI_ARGV": "x" * 5000, "HOME": "/"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as one:
        line, again = one.stdout.readline(), one.stdout.readline()
        one.kill()

    assert placeholder.unpack(line.rstrip("\n")) == {"PMIX_RANK": "3"}
    assert line == again
    for damaged in (line[:-9] + line, line[:40], f"{placeholder.MARK}AAAA", "other"):
        assert placeholder.unpack(damaged.rstrip("\n")) == {}
