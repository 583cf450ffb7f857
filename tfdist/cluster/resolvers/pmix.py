"""The place of a process of which PMIx tells the rank and nothing else.

That no variable of PMIx tells the size: https://github.com/open-mpi/ompi/issues/9167.
"""

from collections.abc import Mapping

from tfdist.cluster.place import Place
from tfdist.cluster.resolvers.variables import number


class PMIxResolver:
    """Refuses a rank without a size, which `prterun` and other launchers of PMIx leave.

    Only a program that is linked with PMIx can ask its server for the size. Without it
    each process would take itself for the only one and train alone. The `mpirun` of
    Open MPI tells the size in variables of its own, which another resolver reads first,
    and Slurm in its own, whether or not its programs belong together.

    A program that calls MPI alone becomes the only rank of a server of its own, and
    hands the variables on to what it starts; Open MPI 4 then says so in
    `OMPI_MCA_ess`.

    Example:
        >>> env = {"PMIX_RANK": "1", "PMIX_NAMESPACE": "prterun-node1-4711@1"}
        >>> PMIxResolver().recognises(env)
        True
        >>> PMIxResolver().recognises(env | {"SLURM_PROCID": "1"})
        False
    """

    name = "pmix"

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Say whether a server of PMIx has given this process a rank."""
        is_of_pmix = env.get("PMIX_RANK") and env.get("PMIX_NAMESPACE")
        is_alone = env.get("OMPI_MCA_ess") == "singleton"
        return bool(is_of_pmix) and not env.get("SLURM_PROCID") and not is_alone

    def resolve(self, env: Mapping[str, str]) -> Place:
        """Say what is missing."""
        rank = number(env, "PMIX_RANK", "prterun")
        raise ValueError(
            "PMIX_RANK tells the rank of this process, but nothing tells how many "
            f"there are. Received: PMIX_RANK={rank}, without OMPI_COMM_WORLD_SIZE. "
            "Start the program with Open MPI's `mpirun` or with `tfdist run`; unset "
            "PMIX_RANK if it is to train alone."
        )
