"""The place of a process that Horovod's runner has started."""

from collections.abc import Mapping

from tfdist.cluster.place import Place
from tfdist.cluster.resolvers.variables import PlaceVariables

_VARIABLES = PlaceVariables(
    "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"
)


class HorovodResolver:
    """Reads what `horovodrun` gives each process when Gloo joins them.

    With MPI below it, `horovodrun` calls `mpirun` and sets none of these variables.

    Example:
        >>> HorovodResolver().recognises({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"})
        True
    """

    name = "horovod"

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Say whether the process is one of Horovod's."""
        return _VARIABLES.are_in(env)

    def resolve(self, env: Mapping[str, str]) -> Place:
        """Read the place from Horovod's variables."""
        return _VARIABLES.read(env, "horovodrun")
