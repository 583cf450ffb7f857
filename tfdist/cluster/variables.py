"""Environment variables of a job: meaning, display and text form."""

import re
import shlex
from collections.abc import Iterable, Mapping

from tfdist.cluster.validation import excerpt

# The variables that resolvers read, by their meaning.
_VARIABLES = {
    "the addresses of all tasks, and which of them this is": "TF_CONFIG CLUSTER_SPEC",
    "that `tfdist run` has started it, and in which run": "TFDIST_RUN_ID",
    "that torchrun has started it": "TORCHELASTIC_RUN_ID",
    "that a server of PMIx has started it": "PMIX_NAMESPACE OMPI_MCA_ess",
    "the task of this process": "TFDIST_TASK JOB_NAME TASK_INDEX",
    "the rank of this process": "TFDIST_RANK SLURM_PROCID HOROVOD_RANK PMI_RANK RANK "
    "OMPI_COMM_WORLD_RANK PMIX_RANK PALS_RANKID FLUX_TASK_RANK MV2_COMM_WORLD_RANK "
    "JSM_NAMESPACE_RANK ALPS_APP_PE PBS_VNODENUM PET_NODE_RANK",
    "how many processes train": "TFDIST_SIZE SLURM_STEP_NUM_TASKS HOROVOD_SIZE "
    "PMI_SIZE WORLD_SIZE OMPI_COMM_WORLD_SIZE SLURM_NTASKS FLUX_JOB_SIZE "
    "MV2_COMM_WORLD_SIZE JSM_NAMESPACE_SIZE",
    "its number among those on this host": "SLURM_LOCALID HOROVOD_LOCAL_RANK "
    "OMPI_COMM_WORLD_LOCAL_RANK MPI_LOCALRANKID LOCAL_RANK PALS_LOCAL_RANKID MPT_LRANK "
    "FLUX_TASK_LOCAL_ID MV2_COMM_WORLD_LOCAL_RANK JSM_NAMESPACE_LOCAL_RANK",
    "how many are on this host": "HOROVOD_LOCAL_SIZE OMPI_COMM_WORLD_LOCAL_SIZE "
    "MPI_LOCALNRANKS LOCAL_WORLD_SIZE PMI_LOCAL_SIZE MV2_COMM_WORLD_LOCAL_SIZE "
    "JSM_NAMESPACE_LOCAL_SIZE",
    "how many hosts there are": "PALS_NODES FLUX_JOB_NNODES MPT_NODES SLURM_NNODES "
    "SLURM_STEP_NUM_NODES PET_NNODES",
    "the pods, and the names of their hosts": "TFDIST_JOB_NAME TFDIST_SERVICE "
    "TFDIST_WORKERS",
    "which pod this is": "JOB_COMPLETION_INDEX HOSTNAME",
    "the ports": "TFDIST_PORT TFDIST_PORT_BASE",
    "the hosts, in order": "SLURM_STEP_NODELIST SLURM_JOB_NODELIST SLURM_NODELIST "
    "SM_HOSTS",
    "how many processes each host has": "SLURM_STEP_TASKS_PER_NODE",
    "on which host each rank is": "SLURM_DISTRIBUTION SLURM_DIST_PLANESIZE "
    "SLURM_HET_SIZE",
    "in which job, step and start it is, and the ports": "SLURM_JOB_ID SLURM_STEP_ID "
    "SLURM_RESTART_COUNT",
    "which of the hosts this is": "SLURM_NODEID SLURMD_NODENAME SM_CURRENT_HOST",
    "the groups of the hosts": "SM_IS_HETERO SM_INSTANCE_GROUPS",
}
_FACTS = {name: fact for fact, names in _VARIABLES.items() for name in names.split()}

HIDDEN = "(hidden)"

# gRPC may use the proxies.
_RELEVANT = re.compile(
    r"(TF|TF2|TFDIST|HOROVOD|OMPI|PMI|PMIX|MPI|I_MPI|HYDRA|UCX|SLURM|KERAS|CUDA|NCCL"
    r"|NVIDIA|OMP|KMP|MKL|GRPC|GLOG)_.*|GROUP_RANK|KUBERNETES_SERVICE_HOST"
    r"|LD_(LIBRARY_PATH|PRELOAD)|MASTER_(ADDR|PORT)|PYTHON(HASHSEED|PATH)|XLA_FLAGS"
    r"|VC_.*_(HOSTS|NUM)|(?i:(grpc|http|https|no|no_grpc)_proxy)",
    re.DOTALL,
)
# Values are shown of variables that are known, as any other may hold a secret.
_KNOWN_WORDS = {
    "TF": "CONFIG CPP NUM FORCE ENABLE DISABLE USE XLA GPU CUDNN DETERMINISTIC",
    "HOROVOD": "RANK SIZE LOCAL CROSS HOSTNAME GLOO CONTROLLER CPU GPU WITH WITHOUT "
    "FUSION CYCLE CACHE TIMELINE STALL AUTOTUNE LOG NCCL MPI CMAKE CUDA NUM THREAD "
    "HIERARCHICAL BATCH ELASTIC ADASUM DISABLE ENABLE",
    "SLURM": "JOB JOBID JOB[A-Z]* STEP STEPID NODEID NODELIST NNODES NTASKS NPROCS "
    "TASK TASKS CPU CPUS MEM GPU GPUS GTIDS PROCID LOCALID DIST DISTRIBUTION RESTART "
    "CLUSTER SUBMIT TOPOLOGY LAUNCH PRIO SRUN UMASK CONF TRES THREADS HET",
    "OMPI": "COMM MCA UNIVERSE FIRST APP ARGV NUM FILE",
    "PMI": "RANK SIZE FD PORT SPAWNED",
    "PMIX": "RANK NAMESPACE VERSION HOSTNAME",
    "MPI": "LOCALRANKID LOCALNRANKS",
    "NCCL": "DEBUG SOCKET IB NET P2P SHM ALGO PROTO NTHREADS BUFFSIZE MIN MAX "
    "TOPO CROSS COLLNET NVLS LAUNCH COMM IGNORE ASYNC BLOCKING",
    "CUDA": "VISIBLE DEVICE LAUNCH HOME PATH CACHE MODULE VERSION",
    "NVIDIA": "VISIBLE DRIVER REQUIRE TF32 PRODUCT",
    "UCX": "TLS NET LOG IB RNDV",
    "KERAS": "BACKEND HOME TORCH NNX",
    "GRPC": "VERBOSITY TRACE DNS POLL ENABLE FORK",
}
_KNOWN = re.compile(
    "|".join(
        f"{prefix}_({words.replace(' ', '|')})(_.*)?"
        for prefix, words in _KNOWN_WORDS.items()
    )
    + r"|(TF2|TFDIST|OMP|KMP|MKL|GLOG|I_MPI|HYDRA)_.*|GROUP_RANK"
    r"|KUBERNETES_SERVICE_HOST|LD_(LIBRARY_PATH|PRELOAD)|MASTER_(ADDR|PORT)"
    r"|PYTHON(HASHSEED|PATH)|VC_.*_(HOSTS|NUM)|XLA_FLAGS|(?i:(grpc|http|https|no|no_grpc)_proxy)",
    re.DOTALL,
)
_SECRET = re.compile(
    "TOKEN|KEY|SECRET|PASS|PWD|CREDENTIAL|AUTH|JWT|COOKIE|PRIVATE|(^|_)PAT(_|$)"
)
_PASSWORD_IN_URL = re.compile(r"(?<=://)[^/\s]+(?=@)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
# An exported bash function spans several lines; clusters often export "module".
_BASH_FUNCTION = re.compile(r"BASH_FUNC_[^=]*=\(\) \{.*")
_ADVICE = "Write NAME=VALUE, and only the variables of the job: printenv | grep ^SLURM_"


def meaning(name: str) -> str:
    """Return what a variable tells that a resolver reads."""
    # Volcano has one for each task of a job.
    return _FACTS.get(name, "the pods of a task")


def relevant_variables(
    env: Mapping[str, str], others: Iterable[str] = ()
) -> dict[str, str]:
    """Return the variables that affect a job, by name, with likely secrets hidden."""
    named = _FACTS.keys() | {*others}
    return {
        name: _shown(name, env[name], is_known=name in named)
        for name in sorted(env)
        if name in named or _RELEVANT.fullmatch(name)
    }


def parse_variables(text: str, *, place: str = "variables") -> dict[str, str]:
    """Parse variables from `printenv`, a dotenv file or `export` lines."""
    variables: dict[str, str] = {}
    is_function = False
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.removesuffix("\r")
        if is_function or _BASH_FUNCTION.fullmatch(line):
            is_function = line != "}"
            continue
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, value = _read_line(line, f"line {number} of {place}")
        if variables.setdefault(name, value) != value:
            raise ValueError(
                f"line {number} of {place} gives {name} a second value. "
                f"Received: {excerpt(repr(value))}, and before it "
                f"{excerpt(repr(variables[name]))}. Leave one of them out."
            )
    return variables


def _read_line(line: str, here: str) -> tuple[str, str]:
    """Split a line into a variable and its unquoted value."""
    words = line.removeprefix("export ")
    name, equals, value = words.partition("=")
    if not equals or not _VARIABLE.fullmatch(name):
        raise ValueError(
            f"{here} must be a variable and its value. "
            f"Received: {excerpt(repr(line))}. {_ADVICE}"
        )
    if value[:1] not in ("'", '"'):
        return name, value
    try:
        unquoted = shlex.split(value)
    except ValueError:
        unquoted = []
    if len(unquoted) != 1:
        raise ValueError(
            f"{here} must close the quotation marks around the value of {name} at its "
            f"end. Received: {excerpt(repr(value))}. {_ADVICE}"
        )
    return name, unquoted[0]


def _shown(name: str, value: str, *, is_known: bool) -> str:
    """Return a value with its secrets hidden."""
    is_known = is_known or _KNOWN.fullmatch(name) is not None
    if value and (not is_known or _SECRET.search(name.upper())):
        return HIDDEN
    # The URL of a proxy may lack "http://".
    if name.lower().endswith("_proxy") and "://" not in value and "@" in value:
        return f"{HIDDEN}@{value.rpartition('@')[2]}"
    return _PASSWORD_IN_URL.sub(HIDDEN, value)
