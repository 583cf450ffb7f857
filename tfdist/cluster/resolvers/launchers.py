"""Launchers that give ranks without addresses: horovodrun, mpirun, torchrun."""

from collections.abc import Mapping
from dataclasses import dataclass

from tfdist.cluster.membership import Place
from tfdist.cluster.resolvers.base import number


@dataclass(frozen=True)
class LauncherResolver:
    """Reader of ranks and sizes from the variables of a launcher."""

    name: str
    launcher: str
    # The names of the rank, size, local rank and local size.
    variables: tuple[str, str, str, str]
    # At least one of these must be set, as other programs also set the rank and size.
    signs: tuple[str, ...] = ()

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Return whether the launcher has set the rank or the size."""
        # If only one is set, `resolve` names the missing one.
        is_ranked = any(map(env.get, self.variables[:2]))
        return is_ranked and (not self.signs or any(map(env.get, self.signs)))

    def resolve(self, env: Mapping[str, str]) -> Place:
        """Read ranks and sizes."""
        rank, size, local_rank, local_size = (
            number(env, name, self.launcher) for name in self.variables
        )
        return Place(rank, size, local_rank, local_size, self.launcher)


def _names(prefix: str) -> tuple[str, str, str, str]:
    """Return the variables of a launcher that names them alike."""
    return (
        f"{prefix}RANK",
        f"{prefix}SIZE",
        f"{prefix}LOCAL_RANK",
        f"{prefix}LOCAL_SIZE",
    )


# With MPI below it, `horovodrun` calls `mpirun` and sets none of these variables.
HOROVOD = LauncherResolver("horovod", "horovodrun", _names("HOROVOD_"))
# Many scripts set RANK and WORLD_SIZE themselves. With `--virtual-local-rank` every
# process has local rank 0, and its own GPU in CUDA_VISIBLE_DEVICES.
# https://docs.pytorch.org/docs/stable/elastic/run.html
TORCHRUN = LauncherResolver(
    "torchrun",
    "torchrun",
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    signs=("TORCHELASTIC_RUN_ID",),
)
OPEN_MPI = LauncherResolver("open_mpi", "mpirun", _names("OMPI_COMM_WORLD_"))
# MPICH and Intel MPI. Slurm's `srun` also sets PMI_RANK and PMI_SIZE.
MPICH = LauncherResolver(
    "mpich",
    "mpirun",
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    signs=("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
# MPI may have started horovodrun and torchrun, so they come first.
LAUNCHERS = (HOROVOD, TORCHRUN, OPEN_MPI, MPICH)


class PMIxResolver:
    """Guard against a rank without a size, set by `prterun` or other PMIx launchers."""

    # No variable of PMIx gives the size, so each process would train alone:
    # https://github.com/open-mpi/ompi/issues/9167. Open MPI and Slurm set their own.
    name = "pmix"
    launcher = "prterun"

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Return whether a PMIx server has given this process a rank."""
        is_of_pmix = env.get("PMIX_RANK") and env.get("PMIX_NAMESPACE")
        # A program that calls MPI by itself becomes the only rank of a PMIx server, and
        # its children inherit the variables. Open MPI 4 marks it with OMPI_MCA_ess.
        is_alone = env.get("OMPI_MCA_ess") == "singleton"
        return bool(is_of_pmix) and not env.get("SLURM_PROCID") and not is_alone

    def resolve(self, env: Mapping[str, str]) -> Place:
        """Raise the error that names the missing size."""
        rank = number(env, "PMIX_RANK", self.launcher)
        raise ValueError(
            "PMIX_RANK gives the rank of this process, but no variable the number of "
            f"processes. Received: PMIX_RANK={rank}, without OMPI_COMM_WORLD_SIZE. "
            "Start the program with Open MPI's `mpirun` or with `tfdist run`; unset "
            "PMIX_RANK if it is to train alone."
        )


def mpi_launcher(launcher: str, env: Mapping[str, str]) -> str | None:
    """Return the launcher through which MPI connects the processes, or None."""
    # Each name includes the MPI, in case mpi4py has loaded another one.
    if launcher == "srun":
        return "srun --mpi=pmix" if env.get("PMIX_RANK") else None
    if not (
        launcher == "mpirun" or (launcher == "tfdist run" and OPEN_MPI.recognises(env))
    ):
        return None
    if not OPEN_MPI.recognises(env):
        return "the mpirun of MPICH or Intel MPI"
    # Open MPI 4 does not give its version.
    return f"the mpirun of Open MPI {env.get('OMPI_VERSION', '4')}"


def has_process_launcher(env: Mapping[str, str]) -> bool:
    """Return whether a launcher has started several processes in one container."""
    # SageMaker, Vertex AI and pod templates describe a container, so all processes that
    # `mpirun` starts, even in other containers, see the same description.
    return any(
        each.recognises(env) and env.get(each.variables[1]) != "1" for each in LAUNCHERS
    )
