"""Resolvers of all launchers, and the table of those that give ranks alone."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tfdist.cluster.address import parse_digits
from tfdist.cluster.model import Cluster, Place
from tfdist.cluster.validation import excerpt


@dataclass(frozen=True)
class ClusterResolver:
    """Reader of the cluster that one launcher or scheduler describes."""

    # Its functions use `env` alone: they neither inspect the machine nor change it.
    name: str  # As `tfdist env` prints it.
    launcher: str  # As in `Membership`.
    # Whether its variables are set, valid or not; never raises.
    is_set: Callable[[Mapping[str, str]], bool]
    # Raises ValueError for mistakes.
    resolve: Callable[[Mapping[str, str]], Cluster]
    # All processes that `mpirun` starts in a container, or in several, see the same
    # description of one container.
    of_container: bool = False

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Return whether this launcher, and no other inside it, gives the rank."""
        return self.is_set(env) and not (
            self.of_container and has_process_launcher(env)
        )


@dataclass(frozen=True)
class RankResolver:
    """Reader of ranks and sizes from the variables of a launcher."""

    name: str
    launcher: str
    # The names of the rank, size, local rank and local size.
    variables: tuple[str, str, str, str]
    # At least one of these must be set, as other programs also set the rank and size.
    signs: tuple[str, ...] = ()
    # None of these may be set: what says otherwise.
    denials: tuple[str, ...] = ()
    # Rank 0 may be a script that starts the ranks, if one of these is set.
    of_scripts: tuple[str, ...] = ()
    # Rank 0 may be the only process.
    may_be_alone: bool = False
    # Its number of hosts, if the local size may be missing.
    hosts: str = ""
    # What MPI it starts processes for, if any.
    mpi: str = ""
    # What to do if no variable gives the size: each process would train alone.
    remedy: str = ""

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Return whether the launcher has set the rank or the size."""
        # If only one is set, `resolve` names the missing one.
        is_ranked = any(map(env.get, self.variables[:2]))
        is_signed = not self.signs or any(map(env.get, self.signs))
        is_denied = any(map(env.get, self.denials))
        if env.get(self.variables[0], "0") == "0":
            is_script = self.may_be_alone or any(map(env.get, self.of_scripts))
            is_denied = is_denied or is_script
        return is_ranked and is_signed and not is_denied

    def resolve(self, env: Mapping[str, str]) -> Place:
        """Read ranks and sizes."""
        name = self.variables[0]
        rank = number(env, name, self.launcher)
        if self.remedy:
            raise ValueError(
                f"{name} gives the rank of this process, but no variable the number "
                f"of processes. Received: {received(env, name)}, as {self.launcher} "
                f"sets it. {self.remedy}; unset {name} if it is to train alone."
            )
        size, local_rank = (
            number(env, name, self.launcher) for name in self.variables[1:3]
        )
        local_size = self._local_size(env, size, local_rank)
        return Place(rank, size, local_rank, local_size, self.launcher)

    def _local_size(self, env: Mapping[str, str], size: int, local_rank: int) -> int:
        """Read the number of processes on this host, or find the least it can be."""
        if env.get(self.variables[3]) or not self.hosts:
            return number(env, self.variables[3], self.launcher)
        hosts = parse_digits(env.get(self.hosts, "")) or max(1, size)
        return max(local_rank + 1, math.ceil(size / hosts))


def _names(prefix: str) -> tuple[str, str, str, str]:
    """Return the variables of a launcher that names them alike."""
    return (
        f"{prefix}RANK",
        f"{prefix}SIZE",
        f"{prefix}LOCAL_RANK",
        f"{prefix}LOCAL_SIZE",
    )


# With MPI below it, `horovodrun` calls `mpirun` and sets none of these variables.
HOROVOD = RankResolver("horovod", "horovodrun", _names("HOROVOD_"))
# Many scripts set RANK and WORLD_SIZE themselves. With `--virtual-local-rank` every
# process has local rank 0, and its own GPU in CUDA_VISIBLE_DEVICES.
# https://docs.pytorch.org/docs/stable/elastic/run.html
TORCHRUN = RankResolver(
    "torchrun",
    "torchrun",
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    signs=("TORCHELASTIC_RUN_ID",),
)
OPEN_MPI = RankResolver(
    "open_mpi", "mpirun", _names("OMPI_COMM_WORLD_"), mpi="the mpirun of Open MPI"
)
# MPICH and Intel MPI. Slurm's `srun` also sets PMI_RANK and PMI_SIZE.
MPICH = RankResolver(
    "mpich",
    "mpirun",
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    signs=("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    mpi="the mpirun of MPICH or Intel MPI",
)
# Launchers of MPI on large machines, as applications of these machines read them.
SITES = (
    # Cray PALS: Polaris, Aurora, Derecho.
    RankResolver(
        "pals",
        "mpiexec",
        ("PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PMI_LOCAL_SIZE"),
        signs=("PALS_RANKID",),
        hosts="PALS_NODES",
        mpi="the mpiexec of Cray PALS",
    ),
    # Flux: El Capitan.
    RankResolver(
        "flux",
        "flux run",
        ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", ""),
        signs=("FLUX_TASK_RANK",),
        hosts="FLUX_JOB_NNODES",
        mpi="flux run",
    ),
    # MVAPICH: the `ibrun` of Frontera and Stampede.
    RankResolver(
        "mvapich", "mpirun_rsh", _names("MV2_COMM_WORLD_"), mpi="MVAPICH's mpirun_rsh"
    ),
    RankResolver(
        "hpe_mpt",
        "mpiexec_mpt",
        ("PMI_RANK", "PMI_SIZE", "MPT_LRANK", ""),
        signs=("MPT_LRANK",),
        hosts="MPT_NODES",
        mpi="HPE's mpiexec_mpt",
    ),
    # Spectrum MPI: Summit, Lassen.
    RankResolver("jsrun", "jsrun", _names("JSM_NAMESPACE_"), mpi="IBM's jsrun"),
)
# Containers keep some variables of Slurm. A script of `sbatch` knows the hosts; with
# `TF_CONFIG={}` the tasks of a step train apart.
SLURM_REMNANTS = RankResolver(
    "slurm_remnants",
    "srun",
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
    signs=("SLURM_PROCID",),
    denials=("SLURM_STEP_NODELIST", "TF_CONFIG"),
    of_scripts=("SLURM_JOB_NODELIST", "SLURM_NODELIST"),
    hosts="SLURM_NNODES",
)
# Only to compare: `SlurmResolver` reads the addresses, too.
SRUN = RankResolver(
    "srun",
    "srun",
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
    signs=("SLURM_STEP_NUM_TASKS",),
    hosts="SLURM_STEP_NUM_NODES",
)
# MPI may have started horovodrun and torchrun, so they come first.
LAUNCHERS = (HOROVOD, TORCHRUN, OPEN_MPI, *SITES, MPICH)

# No variable of PMIx gives the size: https://github.com/open-mpi/ompi/issues/9167. Open
# MPI and Slurm set their own.
GUARDS = (
    RankResolver(
        "pmix",
        "prterun",
        ("PMIX_RANK", "", "", ""),
        signs=("PMIX_NAMESPACE",),
        # A program that calls MPI by itself becomes the only rank of a PMIx server, and
        # its children inherit the variables. Open MPI 4 marks it with OMPI_MCA_ess.
        denials=("SLURM_PROCID", "OMPI_MCA_ess"),
        remedy="Start the program with Open MPI's `mpirun` or with `tfdist run`",
    ),
    RankResolver(
        "aprun",
        "aprun",
        ("ALPS_APP_PE", "", "", ""),
        remedy="Start `tfdist run` on each host",
    ),
    # Torque numbers the script of the job, too.
    RankResolver(
        "pbsdsh",
        "pbsdsh",
        ("PBS_VNODENUM", "", "", ""),
        may_be_alone=True,
        remedy="Start the program with `mpirun`, or once with `tfdist run`",
    ),
)


def mpi_launcher(
    resolver: ClusterResolver | RankResolver | None, env: Mapping[str, str]
) -> str | None:
    """Return the launcher through which MPI connects the processes, or None."""
    # Each name includes the MPI, in case mpi4py has loaded another one.
    if resolver is None:
        return None
    if resolver.launcher == "srun":
        return "srun --mpi=pmix" if env.get("PMIX_RANK") else None
    # `tfdist run` starts `mpirun`, if it chooses MPI.
    if resolver.launcher == "tfdist run" and OPEN_MPI.recognises(env):
        resolver = OPEN_MPI
    if resolver is OPEN_MPI:
        # Open MPI 4 does not give its version.
        return f"{OPEN_MPI.mpi} {env.get('OMPI_VERSION', '4')}"
    return resolver.mpi or None if isinstance(resolver, RankResolver) else None


def has_process_launcher(env: Mapping[str, str]) -> bool:
    """Return whether a launcher has started several processes in one container."""
    return any(
        each.recognises(env) and env.get(each.variables[1]) != "1" for each in LAUNCHERS
    )


def number(env: Mapping[str, str], name: str, launcher: str) -> int:
    """Parse a variable that a launcher sets to a whole number, at least 0."""
    value = parse_digits(env.get(name, ""), most=20)
    if value is None:
        raise ValueError(
            f"{name} must be a whole number, as `{launcher}` sets it. "
            f"Received: {received(env, name)}. "
            f"Start the program with `{launcher}`, and do not change its variables."
        )
    return value


def received(env: Mapping[str, str], name: str) -> str:
    """Format a variable for an error: its value, or its absence."""
    return f"{name}={excerpt(repr(env[name]))}" if name in env else f"no {name}"
