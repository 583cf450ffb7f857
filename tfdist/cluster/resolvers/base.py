"""What every resolver is."""

from collections.abc import Mapping
from typing import Protocol

from tfdist.cluster.model import Cluster
from tfdist.cluster.place import Place


class Resolver(Protocol):
    """Reads the cluster from the variables of one launcher or scheduler.

    Both methods are pure functions of the mapping: they neither look at the machine nor
    change the environment, so that asking twice, or in another order, gives the same.

    Attributes:
        name: What it reads, as `tfdist env` prints it.
        launcher: What started the process, as a `Place` tells it.
    """

    name: str
    launcher: str

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Say whether these variables are there. It never raises.

        Args:
            env: The environment, by variable.

        Returns:
            True if `resolve` is the one to ask, even if the values turn out wrong.
        """
        ...

    def resolve(self, env: Mapping[str, str]) -> Cluster:
        """Read the cluster from variables that this resolver recognises.

        Args:
            env: The environment, by variable.

        Returns:
            The cluster, as the process with this environment sees it.

        Raises:
            ValueError: If the values describe no possible cluster.
        """
        ...


class PlaceResolver(Protocol):
    """Reads the place of a process from a launcher that tells no addresses.

    Its methods are pure functions of the mapping, as those of a `Resolver`.

    Attributes:
        name: What it reads, as `tfdist env` prints it.
    """

    name: str

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Say whether these variables are there. It never raises.

        Args:
            env: The environment, by variable.

        Returns:
            True if `resolve` is the one to ask, even if the values turn out wrong.
        """
        ...

    def resolve(self, env: Mapping[str, str]) -> Place:
        """Read the place from variables that this resolver recognises.

        Args:
            env: The environment, by variable.

        Returns:
            The place of the process with this environment.

        Raises:
            ValueError: If the values describe no possible place.
        """
        ...
