"""What each variable of a launcher or a scheduler tells about a cluster."""

_RANK = "the rank of this process"
_SIZE = "how many processes train"
_LOCAL_RANK = "its number among those on this host"
_LOCAL_SIZE = "how many are on this host"

# Every variable that a resolver reads.
FACTS = {
    "TF_CONFIG": "the addresses of all tasks, and which of them this is",
    "TFDIST_RUN_ID": "that `tfdist run` has started it, and in which run",
    "TFDIST_RANK": f"{_RANK}, which TF_CONFIG must confirm",
    "TFDIST_SIZE": f"{_SIZE}, which TF_CONFIG must confirm",
    "TFDIST_TASK": "the task of this process, which TF_CONFIG must confirm",
    "TFDIST_JOB_NAME": "what the names of the pods begin with",
    "TFDIST_SERVICE": "the service in which the pods have their names",
    "TFDIST_WORKERS": "how many pods there are",
    "TFDIST_PORT": "the port of each pod",
    "TFDIST_PORT_BASE": "the first port on each node",
    "JOB_COMPLETION_INDEX": "which pod this is",
    "HOSTNAME": "which pod this is",
    "SLURM_PROCID": _RANK,
    "SLURM_STEP_NUM_TASKS": _SIZE,
    "SLURM_STEP_NODELIST": "the hosts, in order",
    "SLURM_STEP_TASKS_PER_NODE": "how many processes each host has",
    "SLURM_DISTRIBUTION": "on which host each rank is",
    "SLURM_DIST_PLANESIZE": "on which host each rank is",
    "SLURM_HET_SIZE": "on which host each rank is",
    "SLURM_JOB_ID": "the ports, and in which job it is",
    "SLURM_STEP_ID": "the ports, and in which step it is",
    "SLURM_RESTART_COUNT": "which start of the job it is",
    "SLURM_NODEID": "the number of this host, as a check",
    "SLURM_LOCALID": f"{_LOCAL_RANK}, as a check",
    "SLURMD_NODENAME": "the name of this host, as a check",
    "SM_HOSTS": "the hosts, in order",
    "SM_CURRENT_HOST": "which of the hosts this is",
    "SM_IS_HETERO": "whether the hosts are of several groups",
    "SM_INSTANCE_GROUPS": "the groups of the hosts",
    "CLUSTER_SPEC": "the addresses of all tasks, and which of them this is",
    "HOROVOD_RANK": _RANK,
    "HOROVOD_SIZE": _SIZE,
    "HOROVOD_LOCAL_RANK": _LOCAL_RANK,
    "HOROVOD_LOCAL_SIZE": _LOCAL_SIZE,
    "OMPI_COMM_WORLD_RANK": _RANK,
    "OMPI_COMM_WORLD_SIZE": _SIZE,
    "OMPI_COMM_WORLD_LOCAL_RANK": _LOCAL_RANK,
    "OMPI_COMM_WORLD_LOCAL_SIZE": _LOCAL_SIZE,
    "PMI_RANK": _RANK,
    "PMI_SIZE": _SIZE,
    "MPI_LOCALRANKID": _LOCAL_RANK,
    "MPI_LOCALNRANKS": _LOCAL_SIZE,
    "PMIX_RANK": _RANK,
    "PMIX_NAMESPACE": "that a server of PMIx has started it",
    "OMPI_MCA_ess": "whether it has called MPI alone",
    "TORCHELASTIC_RUN_ID": "that torchrun has started it",
    "RANK": _RANK,
    "WORLD_SIZE": _SIZE,
    "LOCAL_RANK": _LOCAL_RANK,
    "LOCAL_WORLD_SIZE": _LOCAL_SIZE,
}


def fact_of(variable: str) -> str:
    """Return what a variable tells.

    Args:
        variable: Its name.

    Returns:
        A part of a sentence; "" for a variable that no resolver reads.

    Example:
        >>> fact_of("SLURM_PROCID"), fact_of("PATH")
        ('the rank of this process', '')
    """
    return FACTS.get(variable, "")
