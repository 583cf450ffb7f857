"""What a process does whose task is worker or ps: it serves the chief."""

import logging
import signal
import sys
import threading
from types import FrameType
from typing import Any, NoReturn

import tensorflow as tf

from tfdist.cluster.model import Cluster
from tfdist.rendezvous.presence import check_own_port, wait_for_chief, watch_chief
from tfdist.rendezvous.roll_call import start_timeout
from tfdist.rendezvous.watchdog import SILENCE_SECONDS, start_watchdog

_log = logging.getLogger(__name__)

_LEAST_THREADS = 8
_JOBS = ("chief", "worker", "ps")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(cluster: Cluster, start_timeout_seconds: float | None = None) -> NoReturn:
    """Let the chief use this process until it leaves; then end the process.

    A worker computes what the chief sends, a ps holds variables; both are TensorFlow's
    own server. It cannot be stopped, and so it ends with its process. SIGTERM and
    SIGINT end it at once, where it has the main thread, which alone may ask for
    signals. A watchdog kills it when it hangs, because the chief, which goes on without
    a lost worker, waits for one that hangs wherever TensorFlow speaks to all.

    Args:
        cluster: Who is in the job; this process must be a worker or a ps.
        start_timeout_seconds: How long to wait for the chief. Default:
            `tfdist run --start-timeout`, or 300.

    Raises:
        OSError: If this process cannot listen at its own address.
        SystemExit: When the chief has left, with code 0; on a signal, with 128 and its
            number, as in a shell.
        TimeoutError: If the chief does not come.
    """
    check_own_port(cluster)
    start_watchdog(f"{cluster.task} ({cluster.address})", SILENCE_SECONDS)
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            signal.signal(number, _end)
    wait_for_chief(cluster, start_timeout(start_timeout_seconds))
    server = _start(cluster)
    watch_chief(cluster)
    _log.info("The chief has left: the server at %s ends.", server.target)
    raise SystemExit(0)


def _start(cluster: Cluster) -> Any:
    """Start TensorFlow's server at this process's address."""
    # The chief knows of no evaluator, and all must have the same cluster.
    jobs = {job: list(cluster.jobs[job]) for job in _JOBS if job in cluster.jobs}
    try:
        return tf.distribute.Server(
            tf.train.ClusterSpec(jobs),
            job_name=cluster.task.type,
            task_index=cluster.task.index,
            protocol="grpc",
            start=True,
            # Calls of others wait for each other on these threads: with one, which
            # TF_NUM_INTEROP_THREADS may ask for, the first of them waits for ever.
            config=tf.compat.v1.ConfigProto(
                inter_op_parallelism_threads=max(
                    _LEAST_THREADS, 2 * sum(map(len, jobs.values()))
                )
            ),
        )
    except tf.errors.OpError as error:
        raise OSError(
            f"TensorFlow cannot start its server: {error.message}. Received: "
            f"{cluster.task} ({cluster.address}). Look above for the reason that "
            "TensorFlow logs; if another process has taken the port, stop it or give "
            "this task another one, on every process."
        ) from error


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """End the process on a signal.

    An exception does so wherever the main thread is; an event set here could find the
    main thread holding the lock of that very event.
    """
    sys.exit(128 + number)
