"""Choice and construction of the collective for this job."""

import importlib
import json
import sys
from importlib.util import find_spec
from typing import Any

import tensorflow as tf

from tfdist.cluster.detect import detect, detect_membership, explain
from tfdist.cluster.model import Cluster, Membership
from tfdist.collectives.base import Collective
from tfdist.collectives.horovod.current import started_rank
from tfdist.collectives.single import SingleCollective
from tfdist.collectives.tensorflow import TensorFlowCollective
from tfdist.compat.tensorflow import check_not_started, has_started
from tfdist.devices import pin
from tfdist.observing import current_observer

COLLECTIVES = ("auto", "tensorflow", "mpi", "horovod")
_NAMES = {
    "tensorflow": "TensorFlow",
    "mpi": "MPI, which mpi4py has found,",
    "horovod": "Horovod",
}


def connect(name: str, **options: Any) -> Collective:
    """Return the collective of that name for the job in the environment.

    `TensorFlowCollective` takes all options; the others take only the timeouts.
    """
    if name not in COLLECTIVES:
        raise ValueError(
            f"collective must be one of {', '.join(COLLECTIVES)}, or a Collective. "
            f"Received: collective={name!r}. Use 'auto' for what fits the environment."
        )
    member = detect_membership()
    check_trains(member.cluster)
    simulated: Collective | None = current_observer().connect(name)
    if simulated is not None:
        return simulated
    engine = _choose(member) if name == "auto" else name
    if engine == "horovod":
        collective = _connect_horovod(member, **options)
    elif member.size == 1:
        _ask_mpi(engine, member, options.get("start_timeout_seconds"))
        is_of_launcher = member.launcher == "tfdist run" and not has_started()
        if is_of_launcher and not options.get("takes_all_gpus"):
            # As with several processes. Alone, a program may have started TensorFlow.
            pin(member.local_rank, member.local_size)
        return SingleCollective()
    elif engine == "mpi":
        collective = _connect_mpi(member, **options)
    elif member.cluster.size == 1:
        raise ValueError(
            "collective='tensorflow' needs the addresses of all processes, which "
            f"{member.launcher} does not give. Received: {_received(member)}. Start "
            "the program with `tfdist run`; mpirun needs collective='mpi' or "
            "'horovod', and horovodrun 'horovod'."
        )
    else:
        collective = TensorFlowCollective(member.cluster, **options)
    if name == "auto" and member.size > 1 and member.is_chief:
        print(
            f"tfdist: {member.launcher} has started {member.size} processes; the "
            f"collectives of {_NAMES[engine]} join them{_over(collective)}."
            f"{_advice(member, engine)}",
            file=sys.stderr,
        )
    return collective


def _over(collective: Collective) -> str:
    """Return what connects GPUs, if that is NCCL."""
    return ", over NCCL" if getattr(collective, "communication", "") == "nccl" else ""


def _advice(member: Membership, engine: str) -> str:
    """Return why `tfdist run` has chosen MPI, and how to do without."""
    is_local = member.local_size == member.size
    if engine != "mpi" or member.launcher != "tfdist run" or not is_local:
        return ""
    return (
        " MPI is the fastest within a host; `tfdist run --collective tensorflow` does "
        "without."
    )


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


def cluster_of(resolver: Any) -> Cluster:
    """Return the cluster of a `tf.distribute.cluster_resolver.ClusterResolver`."""
    if not isinstance(resolver, tf.distribute.cluster_resolver.ClusterResolver):
        raise TypeError(
            "The cluster must be a Cluster or a resolver of tf.distribute. Received: "
            f"{resolver!r}. Leave it out, so that the environment gives it."
        )
    jobs = resolver.cluster_spec().as_dict()
    task = {"type": resolver.task_type, "index": resolver.task_id}
    text = json.dumps({"cluster": jobs, "task": task}) if jobs else ""
    return detect({"TF_CONFIG": text})


def connect_horovod(process_set: Any = None, **timeouts: float) -> Collective:
    """Return Horovod's collective, or one without overhead for a single process."""
    simulated: Collective | None = current_observer().connect("horovod")
    if simulated is not None:
        return simulated
    return _connect_horovod(detect_membership(), process_set, **timeouts)


def _connect_horovod(
    member: Membership, process_set: Any = None, **timeouts: float
) -> Collective:
    """Start Horovod and return its collective."""
    if member.launcher == "tfdist run" and not member.horovod_launcher:
        # Horovod would run alone, or, for ranks of another MPI, end the process.
        raise RuntimeError(
            "collective='horovod' needs what `tfdist run` gives with --collective "
            f"horovod only. Received: rank {member.rank} of {member.size} without "
            "HOROVOD_RANK. Start the program with `tfdist run --collective horovod`."
        )
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
    # MPI could start later, but what was made before would not be of all ranks, and the
    # script would fail over TensorFlow.
    check_not_started()
    from tfdist.collectives.mpi import MPICollective, start

    start(member, timeouts.get("start_timeout_seconds"))
    return MPICollective(**timeouts)


def _choose(member: Membership) -> str:
    """Return the collective that fits the launcher and what is installed."""
    if member.size == 1:
        return "tensorflow"
    if started_rank() is None and member.mpi_launcher is not None and _finds_mpi():
        return "mpi"
    launcher = member.horovod_launcher
    if launcher is not None and find_spec("horovod") is not None:
        return "horovod"
    if launcher is not None and not member.cluster.is_distributed:
        advice, others = "`tfdist horovod install`", ""
        if member.mpi_launcher is not None:
            # The MPI of a package does not know the launchers of a site.
            is_common = member.launcher == "mpirun"
            others = " and mpi4py"
            advice = "pip install " + (
                "'tfdist[mpi]'" if is_common else "--no-binary=mpi4py mpi4py"
            )
        raise ValueError(
            f"Nothing connects the processes that {member.launcher} has started. "
            f"Received: {_received(member)} and without Horovod{others}. Run {advice}, "
            "or start the program with `tfdist run`."
        )
    return "tensorflow"


def _received(member: Membership) -> str:
    """Return the rank of this process, and the variables that tell it."""
    names = ", ".join(explain().variables)
    return f"rank {member.rank} of {member.size} ({names}), without TF_CONFIG"


def _ask_mpi(engine: str, member: Membership, timeout_seconds: float | None) -> None:
    """Raise if a process that no variable gives a rank is one of several of MPI."""
    loaded = sys.modules.get("mpi4py.MPI")
    is_started = loaded is not None and loaded.Is_initialized()
    if is_started or (engine == "mpi" and _finds_mpi()):
        from tfdist.collectives.mpi import check_ranks

        check_ranks(member, timeout_seconds)


def _finds_mpi() -> bool:
    """Return whether mpi4py is installed and can load an MPI; start nothing."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError):
        return False
    return True
