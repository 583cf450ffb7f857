"""Environment variables of a job: what each tells, and which are safe to show."""

import re
from collections.abc import Iterable, Mapping

from tfdist.cluster.resolvers.launchers import (
    GUARDS,
    LAUNCHERS,
    SLURM_REMNANTS,
    SRUN,
)

_OF_RANKS = (
    "the rank of this process",
    "how many processes train",
    "its number among those on this host",
    "how many are on this host",
    "how many hosts there are",
)
# The others that resolvers read, by their meaning.
_VARIABLES = {
    "the addresses of all tasks, and which of them this is": "TF_CONFIG CLUSTER_SPEC",
    "that `tfdist run` has started it, and in which run": "TFDIST_RUN_ID",
    "that torchrun has started it": "TORCHELASTIC_RUN_ID",
    "that a server of PMIx has started it": "PMIX_NAMESPACE OMPI_MCA_ess",
    "the task of this process": "TFDIST_TASK JOB_NAME TASK_INDEX",
    "the rank of this process": "TFDIST_RANK",
    "how many processes train": "TFDIST_SIZE",
    "the pods, and the names of their hosts": "TFDIST_JOB_NAME TFDIST_SERVICE "
    "TFDIST_WORKERS PET_NNODES PET_MASTER_ADDR",
    "which pod this is": "JOB_COMPLETION_INDEX HOSTNAME PET_NODE_RANK",
    "the ports": "TFDIST_PORT TFDIST_PORT_BASE",
    "the hosts, in order": "SLURM_STEP_NODELIST SLURM_JOB_NODELIST SLURM_NODELIST "
    "SM_HOSTS",
    "how many processes each host has": "SLURM_STEP_TASKS_PER_NODE PET_NPROC_PER_NODE",
    "on which host each rank is": "SLURM_DISTRIBUTION SLURM_DIST_PLANESIZE "
    "SLURM_HET_SIZE",
    "in which job, step and start it is, and the ports": "SLURM_JOB_ID SLURM_STEP_ID "
    "SLURM_RESTART_COUNT",
    "which of the hosts this is": "SLURM_NODEID SLURMD_NODENAME SM_CURRENT_HOST",
    "the groups of the hosts": "SM_IS_HETERO SM_INSTANCE_GROUPS",
}
_FACTS = {name: fact for fact, names in _VARIABLES.items() for name in names.split()}
_FACTS |= {
    name: fact
    for row in (*LAUNCHERS, SLURM_REMNANTS, SRUN, *GUARDS)
    for name, fact in zip((*row.variables, row.hosts), _OF_RANKS, strict=True)
    if name
}

HIDDEN = "(hidden)"

# Others that affect a job. gRPC may use the proxies.
_RELEVANT = re.compile(
    "(TF2|TFDIST|OMPI|PMI|PMIX|MPI|I_MPI|HYDRA|UCX|KERAS|CUDA|NCCL|NVIDIA|OMP|KMP|MKL"
    "|GRPC|GLOG)_.*"
    "|TF_(CPP|NUM|FORCE|ENABLE|DISABLE|USE|XLA|GPU|CUDNN|DETERMINISTIC)_.*"
    "|HOROVOD_(RANK|SIZE|LOCAL|CROSS|HOSTNAME|GLOO|CONTROLLER|CPU|GPU|FUSION|CYCLE"
    "|CACHE|TIMELINE|STALL|AUTOTUNE|LOG|NCCL|MPI|NUM|THREAD|ELASTIC).*"
    "|SLURM_(JOB|STEP|NODE|NNODES|NTASKS|NPROCS|TASK|CPU|MEM|GPU|PROCID|LOCALID|DIST"
    "|RESTART|CLUSTER|SUBMIT|TOPOLOGY|LAUNCH|TRES|THREADS|HET).*"
    "|GROUP_RANK|KUBERNETES_SERVICE_HOST|LD_(LIBRARY_PATH|PRELOAD)|XLA_FLAGS"
    "|MASTER_(ADDR|PORT)|PYTHON(HASHSEED|PATH)|VC_.*_(HOSTS|NUM)"
    "|(?i:(grpc|http|https|no|no_grpc)_proxy)",
    re.DOTALL,
)
_SECRET = re.compile(
    "TOKEN|KEY|SECRET|PASS|PWD|CREDENTIAL|AUTH|JWT|COOKIE|PRIVATE|(^|_)PAT(_|$)"
)
_PASSWORD_IN_URL = re.compile(r"(?<=://)[^/\s]+(?=@)")


def meaning(name: str) -> str:
    """Return what a variable tells that a resolver reads."""
    # Volcano has one for each task of a job.
    return _FACTS.get(name, "the pods of a task")


def relevant_variables(
    env: Mapping[str, str], others: Iterable[str] = ()
) -> dict[str, str]:
    """Return the variables that affect a job, by name, without likely secrets."""
    named = _FACTS.keys() | {*others}
    return {
        name: _shown(name, env[name])
        for name in sorted(env)
        if name in named or _RELEVANT.fullmatch(name)
    }


def _shown(name: str, value: str) -> str:
    """Return a value with its secrets hidden."""
    if value and _SECRET.search(name.upper()):
        return HIDDEN
    # The URL of a proxy may lack "http://".
    if name.lower().endswith("_proxy") and "://" not in value and "@" in value:
        return f"{HIDDEN}@{value.rpartition('@')[2]}"
    return _PASSWORD_IN_URL.sub(HIDDEN, value)
