"""MPI for the ranks of a job: its choice, and an `mpirun` that holds their places."""

from tfdist.launching.mpi.mpirun import (
    MPIStartError,
    check_installed,
    choose,
    joined_by_mpi,
    shell_line,
    with_engine,
)

__all__ = [
    "MPIStartError",
    "check_installed",
    "choose",
    "joined_by_mpi",
    "shell_line",
    "with_engine",
]
