"""The choice of MPI for the ranks of a job, and of its `mpirun`."""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

from tfdist.cluster.hosts.gpus import count_gpus, may_use_gpu
from tfdist.launch.job import Job
from tfdist.launch.machine import available_cores


def with_engine(job: Job) -> Job:
    """Return the job with what "auto" means for ranks on this machine."""
    if job.collective != "auto":
        return job
    environ = {**os.environ, **job.env}
    cores, has_mpi = len(available_cores()), _is_bundled()
    decide = partial(choose, job, environ, cores=cores, has_mpi=has_mpi)
    engine = decide(gpus=0)
    if engine == "mpi" and may_use_gpu(environ):
        # TensorFlow takes seconds to answer.
        engine = decide(gpus=count_gpus(environ))
    return replace(job, collective=engine)


def choose(
    job: Job, environ: Mapping[str, str], *, cores: int, gpus: int, has_mpi: bool
) -> str:
    """Return "mpi" for ranks that are all alike, where MPI is the best to join them."""
    # Slurm has its own way to start a job of MPI. Ranks of MPI poll while they wait:
    # four on two cores had 0.83 of the speed that TensorFlow's collectives had. NCCL,
    # which TensorFlow has, joins ranks that have a GPU each.
    is_fast = job.size is not None and max(1, gpus) < job.size <= cores
    is_free = is_fast and "SLURM_JOB_ID" not in environ
    return "mpi" if is_free and has_mpi else "tensorflow"


def check_installed() -> None:
    """Raise ImportError if mpi4py or `mpirun` is missing."""
    missing = [] if find_spec("mpi4py") else ["mpi4py"]
    if find_mpirun() is None:
        missing.append("mpirun")
    if missing:
        raise ImportError(
            "collective='mpi' needs mpi4py and Open MPI. Received: no "
            f"{' and no '.join(missing)}. Run pip install 'tfdist[mpi]', or leave "
            "--collective out."
        )


def _is_bundled() -> bool:
    """Return whether this Python's environment has mpi4py and Open MPI 5."""
    folder = f"{sys.prefix}/bin"
    has_mpirun = all(shutil.which(name, path=folder) for name in ("mpirun", "prterun"))
    return has_mpirun and find_spec("mpi4py") is not None


def find_mpirun() -> str | None:
    """Return the `mpirun` of this Python's environment, or that on PATH."""
    return shutil.which("mpirun", path=f"{sys.prefix}/bin") or shutil.which("mpirun")
