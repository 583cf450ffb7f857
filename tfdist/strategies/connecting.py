"""Choice and construction of the collective for this job."""

import sys
from importlib.util import find_spec
from typing import Any

from tfdist.cluster.detect import detect_membership
from tfdist.cluster.membership import Membership
from tfdist.cluster.model import Cluster
from tfdist.collectives import Collective, SingleCollective, TensorFlowCollective

COLLECTIVES = ("auto", "tensorflow", "mpi", "horovod")


def connect(name: str, **options: Any) -> Collective:
    """Return the collective of that name for the job in the environment.

    The options are those of `TensorFlowCollective`; the others take only the timeouts.
    """
    if name not in COLLECTIVES:
        raise ValueError(
            f"collective must be one of {', '.join(COLLECTIVES)}, or a Collective. "
            f"Received: collective={name!r}. Use 'auto' for what fits the environment."
        )
    member = detect_membership()
    check_trains(member.cluster)
    is_horovod = name == "horovod" or (name == "auto" and _is_for_horovod(member))
    if is_horovod:
        collective = _connect_horovod(member, **options)
    elif member.size == 1:
        return SingleCollective()
    elif name == "mpi":
        collective = _connect_mpi(member, **options)
    elif member.cluster.size == 1:
        raise ValueError(
            "collective='tensorflow' needs the addresses of all processes, which "
            f"{member.launcher} does not give. Received: rank {member.rank} of "
            f"{member.size}, without TF_CONFIG. Start the program with `tfdist run`; "
            "mpirun needs collective='mpi' or 'horovod', and horovodrun 'horovod'."
        )
    else:
        collective = TensorFlowCollective(member.cluster, **options)
    if name == "auto" and member.size > 1 and member.is_chief:
        engine = "Horovod" if is_horovod else "TensorFlow"
        print(
            f"tfdist: {member.launcher} has started {member.size} processes; the "
            f"collectives of {engine} join them.",
            file=sys.stderr,
        )
    return collective


def check_trains(cluster: Cluster) -> None:
    """Raise `ValueError` for a task without a rank, and for parameter servers."""
    if cluster.ps:
        raise ValueError(
            "This strategy has no parameter servers, and this job has. Received: a "
            f"cluster with ps={list(cluster.ps)}. Make ParameterServerStrategy "
            "instead, or start the program with `tfdist run -np N`."
        )
    if not cluster.task.trains:
        raise ValueError(
            "Only the chief and the workers may create this strategy. Received: a task "
            f"{cluster.task.type!r}. Start the chief and the workers only."
        )


def connect_horovod(process_set: Any = None, **timeouts: float) -> Collective:
    """Return Horovod's collective, or one without overhead for a single process."""
    return _connect_horovod(detect_membership(), process_set, **timeouts)


def _connect_horovod(
    member: Membership, process_set: Any = None, **timeouts: float
) -> Collective:
    """Start Horovod and return its collective."""
    try:
        from tfdist.collectives.horovod.collective import (
            HorovodCollective,
            check_process_set,
        )
        from tfdist.collectives.horovod.peers import start
    except Exception as error:
        raise ImportError(
            "collective='horovod' needs Horovod, built for this TensorFlow. Received: "
            f"{type(error).__name__}: {error}. Run `tfdist horovod install` in this "
            "environment; `tfdist horovod check` says what is wrong."
        ) from error
    check_process_set(process_set)
    if start(member) == 1:
        return SingleCollective()
    return HorovodCollective(process_set, **timeouts)


def _connect_mpi(member: Membership, **timeouts: float) -> Collective:
    """Start MPI and return its collective."""
    from tfdist.collectives.mpi import MPICollective, start

    start(member)
    return MPICollective(**timeouts)


def _is_for_horovod(member: Membership) -> bool:
    """Return whether Horovod connects the processes of the launcher."""
    launcher = member.horovod_launcher
    if launcher is None or member.size == 1:
        return False
    is_installed = find_spec("horovod") is not None
    if not (is_installed or member.cluster.is_distributed):
        raise ValueError(
            f"Nothing connects the processes that {launcher} has started. Received: "
            f"rank {member.rank} of {member.size}, without TF_CONFIG and without "
            "Horovod. Run `tfdist horovod install`, or start the program with `tfdist "
            "run`."
        )
    return is_installed
