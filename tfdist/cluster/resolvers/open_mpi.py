"""The place of a process that Open MPI has started."""

from collections.abc import Mapping

from tfdist.cluster.place import Place
from tfdist.cluster.resolvers.variables import PlaceVariables

_VARIABLES = PlaceVariables(
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)


class OpenMPIResolver:
    """Reads what the `mpirun` of Open MPI and of its descendants gives each process.

    Example:
        >>> OpenMPIResolver().recognises({"OMPI_COMM_WORLD_RANK": "1"})
        True
    """

    name = "open_mpi"

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Say whether the process is one of Open MPI's."""
        return _VARIABLES.are_in(env)

    def resolve(self, env: Mapping[str, str]) -> Place:
        """Read the place from Open MPI's variables."""
        return _VARIABLES.read(env, "mpirun")
