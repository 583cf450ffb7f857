"""Creation of strategies by name."""

import sys
from collections.abc import Callable
from typing import Any

from tfdist.cluster.detect import detect_membership
from tfdist.devices import logical
from tfdist.strategies.allreduce import AllReduceStrategy
from tfdist.strategies.builtin import (
    CentralStorageStrategy,
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    TPUStrategy,
)
from tfdist.strategies.horovod import HorovodStrategy
from tfdist.strategies.parameter_server.strategy import ParameterServerStrategy

STRATEGIES: dict[str, Callable[..., Any]] = {
    "all_reduce": AllReduceStrategy,
    "horovod": HorovodStrategy,
    "parameter_server": ParameterServerStrategy,
    "mirrored": MirroredStrategy,
    "multi_worker_mirrored": MultiWorkerMirroredStrategy,
    "central_storage": CentralStorageStrategy,
    "one_device": OneDeviceStrategy,
    "tpu": TPUStrategy,
}


def create(name: str = "auto", **options: Any) -> Any:
    """Create a strategy by its name, for programs that take it from a flag.

    Args:
        name: A key of `STRATEGIES`, or "auto" to choose by the environment. Default
            "auto".
        **options: The arguments of the strategy's constructor.

    Returns:
        The strategy.

    Raises:
        ValueError: If there is no strategy of that name.

    Example:
        >>> strategy = create("all_reduce")
        >>> strategy.num_replicas_in_sync
        1
    """
    if name == "auto":
        name, options = _choose(options)
    if name not in STRATEGIES:
        raise ValueError(
            f"There is no strategy of this name. Received: name={name!r}. Use 'auto' "
            f"or one of: {', '.join(sorted(STRATEGIES))}."
        )
    return STRATEGIES[name](**options)


def _choose(options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the strategy for this environment and its options; the chief prints it."""
    member = detect_membership()
    if count := len(member.cluster.ps):
        noun = "server" if count == 1 else "servers"
        name, reason = "parameter_server", f"the cluster has {count} parameter {noun}"
    elif member.size > 1:
        name, reason = "all_reduce", f"{member.size} processes train"
    else:
        name, reason, device = _choose_by_devices()
        if name == "one_device" and not options:
            options = {"device": device}
        elif name == "one_device" and "device" not in options:
            # The same on one device, and accepts the options of several devices.
            name = "all_reduce"
    if member.is_chief:
        print(f"tfdist: strategy {name}, because {reason}.", file=sys.stderr)
    return name, options


def _choose_by_devices() -> tuple[str, str, str]:
    """Return the strategy for a single process, the reason, and the first device."""
    gpus = len(logical("GPU"))
    count = gpus or len(logical("CPU"))
    kind = "GPU" if gpus else "CPU"
    if count > 1:
        return "mirrored", f"this one process has {count} {kind}s", f"{kind}:0"
    return "one_device", f"this one process has one {kind}", f"{kind}:0"
