"""The variables that decide how a job runs, fit to be shown to others."""

import re
from collections.abc import Iterable, Mapping

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
        # What may send gRPC elsewhere.
        "grpc_proxy",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "no_grpc_proxy",
    }
)
_SECRET = re.compile("TOKEN|KEY|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|JWT")
_PASSWORD_IN_URL = re.compile(r"(?<=://)[^/\s]+(?=@)")


def relevant_variables(
    env: Mapping[str, str], others: Iterable[str] = ()
) -> dict[str, str]:
    """Return the variables that decide how a job runs, without secrets.

    What a name or an address marks as secret is hidden; a secret in the value of an
    innocent name is not known as such.

    Args:
        env: The environment, by variable.
        others: Names of other variables that matter. Default none.

    Returns:
        Their values, by name, in the order of the names.

    Example:
        >>> relevant_variables({"TF_X": "1", "HOME": "/", "SLURM_JWT": "e30"})
        {'SLURM_JWT': '(hidden)', 'TF_X': '1'}
    """
    named = _NAMES | {*others}
    return {
        name: _shown(name, env[name])
        for name in sorted(env)
        if name.startswith(_PREFIXES) or name in named or name.lower() in named
    }


def _shown(name: str, value: str) -> str:
    """Return a value, if others may see it."""
    if value and _SECRET.search(name.upper()):
        return HIDDEN
    # A proxy may be given without "http://".
    if name.lower().endswith("_proxy") and "://" not in value and "@" in value:
        return f"{HIDDEN}@{value.rpartition('@')[2]}"
    return _PASSWORD_IN_URL.sub(HIDDEN, value)
