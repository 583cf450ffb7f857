"""The choice of MPI for the ranks of a job."""

import subprocess
import sys
from dataclasses import replace

import pytest

from tfdist.launching import mpi, mpi_placeholder
from tfdist.launching.job import Job
from tfdist.launching.mpi import choose, with_engine

ALIKE = Job(("/bin/prog",), size=2)
SLURM = {"SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    ("gpus", "ranks", "cores", "has_mpi", "environ", "engine"),
    [
        (0, 2, 2, True, {}, "mpi"),
        (0, 2, 2, False, {}, "tensorflow"),
        (0, 2, 1, True, {}, "tensorflow"),
        (0, 2, 2, True, SLURM, "tensorflow"),
        (0, 1, 2, True, {}, "tensorflow"),
        # NCCL joins ranks that have a GPU each, but not those that share one.
        (2, 2, 2, True, {}, "tensorflow"),
        (8, 2, 2, True, {}, "tensorflow"),
        (1, 2, 2, True, {}, "mpi"),
        (1, 2, 2, False, {}, "tensorflow"),
        (1, 2, 1, True, {}, "tensorflow"),
        (1, 2, 2, True, SLURM, "tensorflow"),
        (1, 1, 2, True, {}, "tensorflow"),
    ],
)
def test_the_engine_of_ranks_that_are_alike(
    gpus, ranks, cores, has_mpi, environ, engine
):
    job = replace(ALIKE, size=ranks)

    assert choose(job, environ, cores=cores, gpus=gpus, has_mpi=has_mpi) == engine


def test_the_engine_beside_parameter_servers():
    job = Job(("/bin/prog",), workers=2, ps=1)

    assert choose(job, {}, cores=8, gpus=0, has_mpi=True) == "tensorflow"


@pytest.mark.parametrize(
    ("cores", "has_device", "found", "engine", "asked"),
    [
        (2, True, 2, "tensorflow", 1),
        (2, True, 0, "mpi", 1),
        (2, False, 2, "mpi", 0),
        (1, True, 2, "tensorflow", 0),
    ],
)
def test_tensorflow_is_asked_for_gpus_where_the_engine_depends_on_it(
    cores, has_device, found, engine, asked, monkeypatch
):
    environs = []
    monkeypatch.setattr(mpi, "_is_bundled", lambda: True)
    monkeypatch.setattr(mpi, "available_cores", lambda: tuple(range(cores)))
    monkeypatch.setattr(mpi, "may_use_gpu", lambda environ: has_device)
    monkeypatch.setattr(mpi, "count_gpus", lambda env: environs.append(env) or found)

    assert with_engine(replace(ALIKE, env={"A": "b"})).collective == engine
    assert [environ["A"] for environ in environs] == ["b"] * asked


def test_a_line_that_mpirun_has_mixed_with_another_is_ignored():
    """A placeholder repeats it."""
    command = [sys.executable, "-I", "-S", mpi_placeholder.__file__]
    env = {"PMIX_RANK": "3", "OMPI_ARGV": "x" * 5000, "HOME": "/"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as one:
        line, again = one.stdout.readline(), one.stdout.readline()
        one.kill()

    assert mpi_placeholder.unpack(line.rstrip("\n")) == {"PMIX_RANK": "3"}
    assert line == again
    for damaged in (
        line[:-9] + line,
        line[:40],
        f"{mpi_placeholder.MARK}AAAA",
        "other",
    ):
        assert mpi_placeholder.unpack(damaged.rstrip("\n")) == {}
