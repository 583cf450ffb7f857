"""Which collective joins the processes of this job, and how it is made."""

import sys
from importlib.util import find_spec
from typing import Any

from tfdist.cluster.detect import detect, detect_place, horovod_launcher
from tfdist.cluster.model import Cluster
from tfdist.cluster.place import Place
from tfdist.collectives import Collective, SingleCollective, TensorFlowCollective

COLLECTIVES = ("auto", "tensorflow", "horovod")


def connect(name: str, **options: Any) -> Collective:
    """Make the collective of that name for the job that the environment tells of.

    Args:
        name: One of `COLLECTIVES`; "auto" is Horovod where `horovodrun` or `mpirun`
            has started this process, and TensorFlow's own elsewhere. The chief prints
            one line about which it is.
        **options: See `TensorFlowCollective`; Horovod takes the timeouts only.

    Returns:
        The collective.

    Raises:
        ImportError: If Horovod is wanted and not installed, or not for this TensorFlow.
        ValueError: If there is none of that name, if this process does not train, or if
            nothing says where the others are.
    """
    if name not in COLLECTIVES:
        raise ValueError(
            f"collective must be one of {', '.join(COLLECTIVES)}, or a Collective. "
            f"Received: collective={name!r}. Use 'auto' for what fits the environment."
        )
    cluster = detect()
    check_trains(cluster)
    place = detect_place()
    is_horovod = name == "horovod" or (
        name == "auto" and _is_for_horovod(place, has_addresses=cluster.is_distributed)
    )
    if is_horovod:
        collective = connect_horovod(**options)
    elif place.size == 1:
        return SingleCollective()
    elif cluster.size == 1:
        ways = "start the program with `tfdist run`"
        if horovod_launcher() is not None:
            ways = f"use collective='horovod', or {ways}"
        raise ValueError(
            "collective='tensorflow' needs the addresses of all processes, which "
            f"{place.launcher} does not tell. Received: rank {place.rank} of "
            f"{place.size}, without TF_CONFIG. {ways[0].upper()}{ways[1:]}."
        )
    else:
        collective = TensorFlowCollective(cluster, **options)
    if name == "auto" and place.size > 1 and place.is_chief:
        engine = "Horovod" if is_horovod else "TensorFlow"
        print(
            f"tfdist: {place.launcher} has started {place.size} processes; the "
            f"collectives of {engine} join them.",
            file=sys.stderr,
        )
    return collective


def check_trains(cluster: Cluster) -> None:
    """Refuse a process that has no rank.

    Raises:
        ValueError: If this process does not train.
    """
    if not cluster.task.trains:
        raise ValueError(
            "The strategy is for the processes that train. Received: a task "
            f"{cluster.task.type!r}. Start the chief and the workers only."
        )


def connect_horovod(process_set: Any = None, **timeouts: float) -> Collective:
    """Make the collective of Horovod; for one process, one that costs nothing.

    Args:
        process_set: The ranks that take part. Default None: all.
        **timeouts: See `HorovodCollective`.

    Returns:
        The collective.

    Raises:
        ImportError: If Horovod is not installed, or not for this TensorFlow.
        RuntimeError: If Horovod does not see the processes that were started.
    """
    if find_spec("horovod") is None:
        raise ImportError(
            "collective='horovod' needs Horovod. Received: no module 'horovod'. "
            "Run `tfdist horovod install` in this environment."
        )
    try:
        from tfdist.collectives.horovod.collective import (
            HorovodCollective,
            check_process_set,
        )
        from tfdist.collectives.horovod.peers import start
    except Exception as error:
        raise ImportError(
            "Horovod is installed, but cannot be used with this TensorFlow. Received: "
            f"{type(error).__name__}: {error}. Run `tfdist horovod check`, which says "
            "what is wrong; `tfdist horovod install --force` builds it again."
        ) from error
    check_process_set(process_set)
    if start(detect_place()) == 1:
        return SingleCollective()
    return HorovodCollective(process_set, **timeouts)


def _is_for_horovod(place: Place, *, has_addresses: bool) -> bool:
    """Say whether the launcher of several processes is one of Horovod's."""
    launcher = horovod_launcher()
    if launcher is None or place.size == 1:
        return False
    is_installed = find_spec("horovod") is not None
    if not (is_installed or has_addresses):
        raise ValueError(
            f"Nothing joins the processes that {launcher} has started. Received: rank "
            f"{place.rank} of {place.size}, without TF_CONFIG and without Horovod. Run "
            "`tfdist horovod install`, or start the program with `tfdist run`."
        )
    return is_installed
