"""Choice of the library that connects the ranks of a job."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tfdist.launch.job import Job
from tfdist.launch.mpi import is_bundled

# The devices of NVIDIA's driver, of AMD's, and of Windows for a Linux within it.
_GPUS = ("nvidia[0-9]*", "kfd", "dxg")


def with_engine(job: Job, *, is_here: bool) -> Job:
    """Return the job with the engine that "auto" means on this machine."""
    if job.collective != "auto":
        return job
    environ = {**os.environ, **job.env}
    can_use_mpi = is_here and not uses_gpu(environ) and is_bundled()
    return replace(job, collective=choose(job, environ, can_use_mpi=can_use_mpi))


def choose(job: Job, environ: Mapping[str, str], *, can_use_mpi: bool) -> str:
    """Return "mpi" for several ranks that are all alike, where MPI can join them."""
    # Slurm has its own way to start a job of MPI.
    has_peers = job.size is not None and job.size > 1
    is_free = has_peers and "SLURM_JOB_ID" not in environ
    return "mpi" if is_free and can_use_mpi else "tensorflow"


def uses_gpu(environ: Mapping[str, str], devices: Path = Path("/dev")) -> bool:
    """Return whether TensorFlow may use a GPU; without TensorFlow, which takes long."""
    if environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        return False
    return any(any(devices.glob(pattern)) for pattern in _GPUS)
