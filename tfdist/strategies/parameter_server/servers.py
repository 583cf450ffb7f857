"""Worker and ps processes, which serve the chief."""

import logging
import signal
import sys
import threading
from types import FrameType
from typing import Any, NoReturn

import tensorflow as tf

from tfdist.cluster.address import split_address
from tfdist.cluster.launcher import start_timeout
from tfdist.cluster.model import Cluster
from tfdist.compat.parameter_server import config_of_gpus
from tfdist.devices import hide_gpus, pin
from tfdist.liveness.watchdog import SILENCE_SECONDS, start_watchdog
from tfdist.rendezvous.presence import (
    check_own_port,
    wait_for_chief,
    watch_chief,
)

_log = logging.getLogger(__name__)

_LEAST_THREADS = 8
_JOBS = ("chief", "worker", "ps")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(cluster: Cluster, start_timeout_seconds: float | None = None) -> NoReturn:
    """Run a TensorFlow server in this worker or ps until the chief leaves, then exit.

    A TensorFlow server cannot be stopped, so its process ends: with code 0 when the
    chief leaves, or with 128 plus the number of a signal. A watchdog kills a process
    that hangs, because TensorFlow's calls to all workers tolerate a lost one but not a
    hanging one.
    """
    _choose_gpu(cluster)
    check_own_port(cluster)
    start_watchdog(f"{cluster.task} ({cluster.address})", SILENCE_SECONDS)
    # Only the main thread may set signal handlers.
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            signal.signal(number, _end)
    wait_for_chief(cluster, start_timeout(start_timeout_seconds))
    server = _start(cluster)
    watch_chief(cluster)
    _log.info("The chief has left: the server at %s ends.", server.target)
    raise SystemExit(0)


def _choose_gpu(cluster: Cluster) -> None:
    """Give each worker of a host a GPU of its own, and a ps none."""
    if cluster.task.type == "ps":
        hide_gpus()
        return
    # Unlike `cluster.local_rank`, without the chief.
    hosts = [split_address(address)[0] for address in cluster.workers]
    index = cluster.task.index
    pin(hosts[:index].count(hosts[index]), hosts.count(hosts[index]))


def _start(cluster: Cluster) -> Any:
    """Start a TensorFlow server at this process's address."""
    # Without evaluators, as in the chief's cluster.
    jobs = {job: list(cluster.jobs[job]) for job in _JOBS if job in cluster.jobs}
    config = config_of_gpus()
    # Remote calls block threads, and deadlock with as few threads as
    # TF_NUM_INTEROP_THREADS may set.
    config.inter_op_parallelism_threads = max(
        _LEAST_THREADS, 2 * sum(map(len, jobs.values()))
    )
    return tf.distribute.Server(
        tf.train.ClusterSpec(jobs),
        job_name=cluster.task.type,
        task_index=cluster.task.index,
        protocol="grpc",
        start=True,
        config=config,
    )


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """Exit on a signal; setting an event here could deadlock the main thread."""
    sys.exit(128 + number)
