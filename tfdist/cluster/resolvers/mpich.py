"""The place of a process that MPICH or Intel MPI has started."""

from collections.abc import Mapping

from tfdist.cluster.place import Place
from tfdist.cluster.resolvers.variables import PlaceVariables

_VARIABLES = PlaceVariables(
    "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"
)


class MPICHResolver:
    """Reads what the `mpirun` of MPICH and of Intel MPI gives each process.

    The `srun` of Slurm sets PMI_RANK and PMI_SIZE too, and not the other two: it may
    have started programs that have nothing to do with each other.

    Example:
        >>> env = {"PMI_RANK": "1", "PMI_SIZE": "2"}
        >>> MPICHResolver().recognises(env)
        False
        >>> env |= {"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
        >>> MPICHResolver().resolve(env).local_rank
        1
    """

    name = "mpich"

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Say whether the process is one of MPICH's."""
        is_of_mpi = env.get("MPI_LOCALRANKID") or env.get("MPI_LOCALNRANKS")
        return bool(is_of_mpi) and _VARIABLES.are_in(env)

    def resolve(self, env: Mapping[str, str]) -> Place:
        """Read the place from the variables of MPICH."""
        return _VARIABLES.read(env, "mpirun")
