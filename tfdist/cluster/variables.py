"""Environment variables of a job: meaning, display and text form."""

import re
import shlex
from collections.abc import Iterable, Mapping

_RANK = "the rank of this process"
_SIZE = "how many processes train"
_LOCAL_RANK = "its number among those on this host"
_LOCAL_SIZE = "how many are on this host"

# The meaning of every variable that a resolver reads.
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

HIDDEN = "(hidden)"

_PREFIXES = (
    "TF_",
    "TFDIST_",
    "TF2_",
    "HOROVOD_",
    "OMPI_",
    "PMI_",
    "PMIX_",
    "MPI_",
    "I_MPI_",
    "HYDRA_",
    "UCX_",
    "SLURM_",
    "KERAS_",
    "CUDA_",
    "NCCL_",
    "NVIDIA_",
    "OMP_",
    "KMP_",
    "MKL_",
    "GRPC_",
    "GLOG_",
)
_NAMES = frozenset(
    {
        "CLUSTER_SPEC",
        "GROUP_RANK",
        "HOSTNAME",
        "JOB_COMPLETION_INDEX",
        "KUBERNETES_SERVICE_HOST",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "PYTHONHASHSEED",
        "PYTHONPATH",
        "RANK",
        "SM_CURRENT_HOST",
        "SM_HOSTS",
        "SM_INSTANCE_GROUPS",
        "TORCHELASTIC_RUN_ID",
        "WORLD_SIZE",
        "XLA_FLAGS",
        # gRPC may use these proxies.
        "grpc_proxy",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "no_grpc_proxy",
    }
)
_SECRET = re.compile("TOKEN|KEY|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|JWT")
_PASSWORD_IN_URL = re.compile(r"(?<=://)[^/\s]+(?=@)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
# An exported bash function spans several lines; clusters often export "module".
_BASH_FUNCTION = re.compile(r"BASH_FUNC_[^=]*=\(\) \{.*")
_ADVICE = "Write NAME=VALUE, and only the variables of the job: printenv | grep ^SLURM_"


def relevant_variables(
    env: Mapping[str, str], others: Iterable[str] = ()
) -> dict[str, str]:
    """Return the variables that affect a job, by name, with likely secrets hidden."""
    named = _NAMES | {*others}
    return {
        name: _shown(name, env[name])
        for name in sorted(env)
        if name.startswith(_PREFIXES) or name in named or name.lower() in named
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
                f"Received: {_excerpt(value)}, and before it "
                f"{_excerpt(variables[name])}. Leave one of them out."
            )
    return variables


def _read_line(line: str, here: str) -> tuple[str, str]:
    """Split a line into a variable and its unquoted value."""
    words = line.removeprefix("export ")
    name, equals, value = words.partition("=")
    if not equals or not _VARIABLE.fullmatch(name):
        raise ValueError(
            f"{here} must be a variable and its value. "
            f"Received: {_excerpt(line)}. {_ADVICE}"
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
            f"end. Received: {_excerpt(value)}. {_ADVICE}"
        )
    return name, unquoted[0]


def _excerpt(text: str) -> str:
    """Return the beginning of a text in quotation marks."""
    return repr(text) if len(text) <= 72 else f"{text[:72]!r}..."


def _shown(name: str, value: str) -> str:
    """Return a value with its secrets hidden."""
    if value and _SECRET.search(name.upper()):
        return HIDDEN
    # The URL of a proxy may lack "http://".
    if name.lower().endswith("_proxy") and "://" not in value and "@" in value:
        return f"{HIDDEN}@{value.rpartition('@')[2]}"
    return _PASSWORD_IN_URL.sub(HIDDEN, value)
