"""Creation of strategies by name."""

import difflib
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.cluster.detect import detect_membership
from tfdist.strategies.allreduce import AllReduceStrategy
from tfdist.strategies.builtin import (
    CentralStorageStrategy,
    MirroredStrategy,
    OneDeviceStrategy,
    TPUStrategy,
)
from tfdist.strategies.horovod import HorovodStrategy
from tfdist.strategies.multi_worker import MultiWorkerMirroredStrategy
from tfdist.strategies.parameter_server import ParameterServerStrategy

# Name -> constructor and one-line description.
STRATEGIES: dict[str, tuple[Callable[..., Any], str]] = {
    "all_reduce": (
        AllReduceStrategy,
        "synchronous data parallel, one replica a process",
    ),
    "horovod": (HorovodStrategy, "the same on Horovod, with Horovod's options"),
    "parameter_server": (
        ParameterServerStrategy,
        "variables on servers, gradients from workers at their own pace or in step",
    ),
    "mirrored": (MirroredStrategy, "a copy of the model on each device of a process"),
    "multi_worker_mirrored": (
        MultiWorkerMirroredStrategy,
        "a copy of the model on each device of each process",
    ),
    "central_storage": (
        CentralStorageStrategy,
        "weights on one device, which all devices of a process read",
    ),
    "one_device": (OneDeviceStrategy, "everything on one device"),
    "tpu": (TPUStrategy, "TensorFlow's own, for TPUs"),
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
        nearest = difflib.get_close_matches(name, STRATEGIES, n=1)
        advice = f"Did you mean {nearest[0]!r}? " if nearest else ""
        raise ValueError(
            f"There is no strategy of this name. Received: name={name!r}. {advice}"
            f"Use 'auto' or one of: {', '.join(sorted(STRATEGIES))}."
        )
    factory, _ = STRATEGIES[name]
    return factory(**options)


def _choose(options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the strategy for this environment and its options; the chief prints it."""
    member = detect_membership()
    cluster = member.cluster
    if cluster.ps:
        count = len(cluster.ps)
        servers = "server" if count == 1 else "servers"
        name, reason = (
            "parameter_server",
            f"the cluster has {count} parameter {servers}",
        )
        is_speaker = cluster.task.type == "chief"
    elif member.size > 1:
        name, reason = "all_reduce", f"{member.size} processes train"
        is_speaker = member.is_chief
    else:
        name, reason = _choose_by_devices()
        is_speaker = True
    if name == "one_device" and not options:
        options = {"device": "GPU:0" if "GPU" in reason else "CPU:0"}
    elif name == "one_device" and "device" not in options:
        # The same on one device, and accepts the options of several devices.
        name = "all_reduce"
    if is_speaker:
        print(f"tfdist: strategy {name}, because {reason}.", file=sys.stderr)
    return name, options


def _choose_by_devices() -> tuple[str, str]:
    """Return the strategy for a single process, and the reason."""
    gpus = len(tf.config.list_logical_devices("GPU"))
    count = gpus or len(tf.config.list_logical_devices("CPU"))
    kind = "GPU" if gpus else "CPU"
    if count > 1:
        return "mirrored", f"this one process has {count} {kind}s"
    return "one_device", f"this one process has one {kind}"
