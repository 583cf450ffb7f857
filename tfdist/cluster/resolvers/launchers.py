"""Launchers that give numbers and no addresses: horovodrun, mpirun, torchrun.

https://docs.pytorch.org/docs/stable/elastic/run.html lists the variables of torchrun.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tfdist.cluster.membership import Place
from tfdist.cluster.resolvers.base import number


@dataclass(frozen=True)
class LauncherResolver:
    """Reads four numbers from the variables of a launcher.

    Args:
        name: The name that `tfdist env` prints.
        launcher: The command.
        rank: The variable with the rank.
        size: The variable with the number of processes.
        local_rank: The variable with the rank on this host.
        local_size: The variable with the number of processes on this host.
        signs: Variables of which at least one must be set, because other programs set
            the rank and the size, too. Default none.
    """

    name: str
    launcher: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    signs: tuple[str, ...] = ()

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Return whether the launcher has set the rank or the size."""
        # With one of them alone, `resolve` names the missing one.
        is_ranked = bool(env.get(self.rank) or env.get(self.size))
        return is_ranked and (not self.signs or any(map(env.get, self.signs)))

    def resolve(self, env: Mapping[str, str]) -> Place:
        """Read the numbers."""
        return Place(
            rank=number(env, self.rank, self.launcher),
            size=number(env, self.size, self.launcher),
            local_rank=number(env, self.local_rank, self.launcher),
            local_size=number(env, self.local_size, self.launcher),
            launcher=self.launcher,
        )


# With MPI below it, `horovodrun` calls `mpirun` and sets none of these variables.
HOROVOD = LauncherResolver(
    "horovod",
    "horovodrun",
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
)
# Many scripts set RANK and WORLD_SIZE. With `--virtual-local-rank` all processes have
# the local rank 0, and each its own GPU in CUDA_VISIBLE_DEVICES.
TORCHRUN = LauncherResolver(
    "torchrun",
    "torchrun",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    signs=("TORCHELASTIC_RUN_ID",),
)
OPEN_MPI = LauncherResolver(
    "open_mpi",
    "mpirun",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
# For MPICH and Intel MPI. The `srun` of Slurm sets the first two as well.
MPICH = LauncherResolver(
    "mpich",
    "mpirun",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    signs=("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)

# A sign of each launcher, and its number of processes.
_SIGNS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPI_LOCALRANKID", "PMI_SIZE"),
    ("TORCHELASTIC_RUN_ID", "WORLD_SIZE"),
)


class PMIxResolver:
    """Refuses a rank without a size, as `prterun` and other PMIx launchers leave it.

    No variable of PMIx gives the size (https://github.com/open-mpi/ompi/issues/9167),
    so each process would train alone. Open MPI and Slurm give it in variables of their
    own. A program that calls MPI by itself becomes the only rank of a PMIx server and
    hands the variables on to its children; Open MPI 4 marks it by `OMPI_MCA_ess`.
    """

    name = "pmix"

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Return whether a PMIx server has given this process a rank."""
        is_of_pmix = env.get("PMIX_RANK") and env.get("PMIX_NAMESPACE")
        is_alone = env.get("OMPI_MCA_ess") == "singleton"
        return bool(is_of_pmix) and not env.get("SLURM_PROCID") and not is_alone

    def resolve(self, env: Mapping[str, str]) -> Place:
        """Raise the error that names the missing size."""
        rank = number(env, "PMIX_RANK", "prterun")
        raise ValueError(
            "PMIX_RANK gives the rank of this process, but no variable the number of "
            f"processes. Received: PMIX_RANK={rank}, without OMPI_COMM_WORLD_SIZE. "
            "Start the program with Open MPI's `mpirun` or with `tfdist run`; unset "
            "PMIX_RANK if it is to train alone."
        )


def has_process_launcher(env: Mapping[str, str]) -> bool:
    """Return whether a launcher has started several processes in one container.

    SageMaker, Vertex AI and a pod template describe a container. All processes that an
    `mpirun` starts in it, or even in other containers, get the same description.
    """
    return any(env.get(sign) and env.get(size) != "1" for sign, size in _SIGNS)
