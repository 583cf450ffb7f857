"""Horovod jobs as `horovodrun` starts them: identity, rendezvous server and tuning."""

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tfdist.cluster import Cluster
from tfdist.horovod_build.installed import parts_in

PORT_VARIABLE = "HOROVOD_GLOO_RENDEZVOUS_PORT"
_ADDRESS = "127.0.0.1"
_HOSTNAME = "localhost"
# All processes run on one host.
_ON_ONE_HOST = {
    "HOROVOD_CONTROLLER": "gloo",
    "HOROVOD_CPU_OPERATIONS": "gloo",
    "HOROVOD_CROSS_RANK": "0",
    "HOROVOD_CROSS_SIZE": "1",
    "HOROVOD_GLOO_IFACE": "lo",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": _ADDRESS,
    "HOROVOD_HOSTNAME": _HOSTNAME,
}
# Identify a Horovod process; values inherited from another launcher would be wrong.
IDENTITY_VARIABLES = (
    *_ON_ONE_HOST,
    PORT_VARIABLE,
    "HOROVOD_ELASTIC",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
)

_POLL_SECONDS = 0.05
# A terabyte, a quarter of an hour, eleven days; Horovod's numbers overflow in silence.
_MOST = 10**6

# The options of `horovodrun` and their variables.
_VARIABLES = {
    "fusion_threshold_mb": "HOROVOD_FUSION_THRESHOLD",
    "cycle_time_ms": "HOROVOD_CYCLE_TIME",
    "cache_capacity": "HOROVOD_CACHE_CAPACITY",
    "stall_check_warning_time_seconds": "HOROVOD_STALL_CHECK_TIME_SECONDS",
    "stall_check_shutdown_time_seconds": "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
    "timeline_mark_cycles": "HOROVOD_TIMELINE_MARK_CYCLES",
    "autotune": "HOROVOD_AUTOTUNE",
    "no_stall_check": "HOROVOD_STALL_CHECK_DISABLE",
    "timeline": "HOROVOD_TIMELINE",
    "autotune_log_file": "HOROVOD_AUTOTUNE_LOG",
    "log_level": "HOROVOD_LOG_LEVEL",
}
TUNING_OPTIONS = tuple(_VARIABLES)
# Horovod ignores each option without the other.
_NEEDS = {"timeline_mark_cycles": "timeline", "autotune_log_file": "autotune"}


def identity_of(cluster: Cluster, port: int) -> dict[str, str]:
    """Return the variables that identify a Horovod process."""
    return {
        **_ON_ONE_HOST,
        PORT_VARIABLE: str(port),
        "HOROVOD_RANK": str(cluster.rank),
        "HOROVOD_SIZE": str(cluster.size),
        "HOROVOD_LOCAL_RANK": str(cluster.local_rank),
        "HOROVOD_LOCAL_SIZE": str(cluster.local_size),
    }


@contextlib.contextmanager
def rendezvous(size: int, port: int) -> Iterator[None]:
    """Serve Horovod's rendezvous on this machine during the block."""
    check_installed()
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    try:
        server = RendezvousHTTPServer((_ADDRESS, port), RendezvousHandler, 0)
    except OSError as error:
        raise OSError(
            f"Horovod's rendezvous could not listen on {_ADDRESS}. "
            f"Received: port {port} ({error.strerror}). "
            "Run it again: it will take another port."
        ) from None
    server.init(get_host_assignments(parse_hosts(f"{_HOSTNAME}:{size}"), size))
    # Ignore requests that a killed process leaves unfinished.
    server.handle_error = lambda request, address: None
    server.daemon_threads = True
    thread = threading.Thread(
        target=server.serve_forever, args=(_POLL_SECONDS,), daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def serve(size: int, port: int) -> None:
    """Serve manually started processes until Ctrl-C or SIGTERM."""
    # A blocked signal waits for `sigwait`, even where a shell has SIGINT ignored.
    ends = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    with rendezvous(size, port):
        signal.sigwait(ends)


def check_installed() -> None:
    """Raise ImportError if Horovod, its TensorFlow support or Gloo is missing."""
    try:
        import horovod
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "A Horovod job needs Horovod, which is not installed. "
            "Received: collective='horovod'. Run `tfdist horovod install`.",
            name="horovod",
        ) from None
    folder = Path(horovod.__file__).parent
    parts = parts_in(folder)
    if parts is None or "Gloo" not in parts:
        missing = "TensorFlow" if parts is None else "Gloo, which connects processes"
        raise ImportError(
            f"Horovod was built without {missing}. Received: {folder}. "
            "Run `tfdist horovod install` to build it again."
        )


def tuning_variables(options: Mapping[str, Any]) -> dict[str, str]:
    """Return Horovod's tuning variables for options other than None and False."""
    variables = {}
    for name, variable in _VARIABLES.items():
        value = options.get(name)
        if value is None or value is False:
            continue
        option = _option(name)
        if isinstance(value, int | float) and not 0 <= value <= _MOST:
            raise ValueError(
                f"{option} must be from 0 to {_MOST:,}. "
                f"Received: {option} {value}. Leave it out for Horovod's default."
            )
        if name in _NEEDS and not options.get(_NEEDS[name]):
            other = _option(_NEEDS[name])
            raise ValueError(
                f"{option} has no effect without {other}. "
                f"Received: {option} alone. Give {other} too, or leave it out."
            )
        if name == "fusion_threshold_mb":
            value *= 2**20
        variables[variable] = "1" if value is True else str(value)
    return variables


def _option(name: str) -> str:
    """Return the name of an option on the command line."""
    return "--" + name.replace("_", "-")
