"""The choice of MPI for the ranks of a job."""

import subprocess
import sys

import pytest

from tfdist.launch import placeholder
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
