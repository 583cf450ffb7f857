"""Launchers that give ranks without addresses: horovodrun, mpirun, torchrun."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tfdist.cluster.address import parse_digits
from tfdist.cluster.membership import Place
from tfdist.cluster.resolvers.base import number, received


@dataclass(frozen=True)
class LauncherResolver:
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
    # Its number of hosts, if the local size may be missing.
    hosts: str = ""
    # What MPI it starts processes for, if any.
    mpi: str = ""

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Return whether the launcher has set the rank or the size."""
        # If only one is set, `resolve` names the missing one.
        is_ranked = any(map(env.get, self.variables[:2]))
        is_signed = not self.signs or any(map(env.get, self.signs))
        is_denied = any(map(env.get, self.denials))
        if env.get(self.variables[0], "0") == "0":
            is_denied = is_denied or any(map(env.get, self.of_scripts))
        return is_ranked and is_signed and not is_denied

    def resolve(self, env: Mapping[str, str]) -> Place:
        """Read ranks and sizes."""
        rank, size, local_rank = (
            number(env, name, self.launcher) for name in self.variables[:3]
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
# Launchers of MPI on large machines, as applications of these machines read them.
SITES = (
    # Cray PALS: Polaris, Aurora, Derecho.
    LauncherResolver(
        "pals",
        "mpiexec",
        ("PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PMI_LOCAL_SIZE"),
        signs=("PALS_RANKID",),
        hosts="PALS_NODES",
        mpi="the mpiexec of Cray PALS",
    ),
    # Flux: El Capitan.
    LauncherResolver(
        "flux",
        "flux run",
        ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", ""),
        signs=("FLUX_TASK_RANK",),
        hosts="FLUX_JOB_NNODES",
        mpi="flux run",
    ),
    # MVAPICH: the `ibrun` of Frontera and Stampede.
    LauncherResolver(
        "mvapich", "mpirun_rsh", _names("MV2_COMM_WORLD_"), mpi="MVAPICH's mpirun_rsh"
    ),
    LauncherResolver(
        "hpe_mpt",
        "mpiexec_mpt",
        ("PMI_RANK", "PMI_SIZE", "MPT_LRANK", ""),
        signs=("MPT_LRANK",),
        hosts="MPT_NODES",
        mpi="HPE's mpiexec_mpt",
    ),
    # Spectrum MPI: Summit, Lassen.
    LauncherResolver("jsrun", "jsrun", _names("JSM_NAMESPACE_"), mpi="IBM's jsrun"),
)
# Containers keep some variables of Slurm. A script of `sbatch` knows the hosts; with
# `TF_CONFIG={}` the tasks of a step train apart.
SLURM_REMNANTS = LauncherResolver(
    "slurm_remnants",
    "srun",
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
    signs=("SLURM_PROCID",),
    denials=("SLURM_STEP_NODELIST", "TF_CONFIG"),
    of_scripts=("SLURM_JOB_NODELIST", "SLURM_NODELIST"),
    hosts="SLURM_NNODES",
)
# Only to compare: `SlurmResolver` reads the addresses, too.
SRUN = LauncherResolver(
    "srun",
    "srun",
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
    signs=("SLURM_STEP_NUM_TASKS",),
    hosts="SLURM_STEP_NUM_NODES",
)
# MPI may have started horovodrun and torchrun, so they come first.
LAUNCHERS = (HOROVOD, TORCHRUN, OPEN_MPI, *SITES, MPICH)


@dataclass(frozen=True)
class Guard:
    """Guard against a rank without a size: each process would train alone."""

    name: str
    launcher: str
    rank: str
    remedy: str
    # Of a batch job, the script that starts the ranks may have rank 0.
    least_rank: int = 0
    # If it is above 1, rank 0 is not alone.
    hosts: str = ""
    # Must be set, too.
    sign: str = ""
    # Must not be set: what says otherwise.
    denials: tuple[str, ...] = ()

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Return whether the launcher has given this process a rank."""
        rank = parse_digits(env.get(self.rank, "")) or 0
        hosts = parse_digits(env.get(self.hosts, "")) or 1
        is_one_of_several = rank >= self.least_rank or hosts > 1
        is_ranked = bool(env.get(self.rank)) and is_one_of_several
        is_signed = not self.sign or bool(env.get(self.sign))
        return is_ranked and is_signed and not any(map(env.get, self.denials))

    def resolve(self, env: Mapping[str, str]) -> Place:
        """Raise the error that names the missing size."""
        number(env, self.rank, self.launcher)
        raise ValueError(
            f"{self.rank} gives the rank of this process, but no variable the number "
            f"of processes. Received: {received(env, self.rank)}, as {self.launcher} "
            f"sets it. {self.remedy}; unset {self.rank} if it is to train alone."
        )


# No variable of PMIx gives the size: https://github.com/open-mpi/ompi/issues/9167. Open
# MPI and Slurm set their own.
GUARDS = (
    Guard(
        "pmix",
        "prterun",
        "PMIX_RANK",
        "Start the program with Open MPI's `mpirun` or with `tfdist run`",
        sign="PMIX_NAMESPACE",
        # A program that calls MPI by itself becomes the only rank of a PMIx server, and
        # its children inherit the variables. Open MPI 4 marks it with OMPI_MCA_ess.
        denials=("SLURM_PROCID", "OMPI_MCA_ess"),
    ),
    Guard(
        "aprun",
        "aprun",
        "ALPS_APP_PE",
        "Start `tfdist run` on each host",
    ),
    # Torque numbers the script of the job, too.
    Guard(
        "pbsdsh",
        "pbsdsh",
        "PBS_VNODENUM",
        "Start the program with `mpirun`, or once with `tfdist run`",
        least_rank=1,
    ),
    Guard(
        "kubeflow",
        "Kubeflow Trainer",
        "PET_NODE_RANK",
        "Start the program in the pods with `torchrun`, or take a runtime for MPI",
        least_rank=1,
        hosts="PET_NNODES",
    ),
)


def mpi_launcher(launcher: str, env: Mapping[str, str]) -> str | None:
    """Return the launcher through which MPI connects the processes, or None."""
    # Each name includes the MPI, in case mpi4py has loaded another one.
    if launcher == "srun":
        return "srun --mpi=pmix" if env.get("PMIX_RANK") else None
    of_site = next((each.mpi for each in SITES if each.launcher == launcher), None)
    if of_site is not None:
        return of_site
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
