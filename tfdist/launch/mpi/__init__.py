"""MPI for the ranks of a job: its choice, and an `mpirun` that holds their places."""

from tfdist.launch.mpi.choice import check_installed, choose, with_engine
from tfdist.launch.mpi.mpirun import MPIStartError, places, shell_line

__all__ = [
    "MPIStartError",
    "check_installed",
    "choose",
    "places",
    "shell_line",
    "with_engine",
]
