"""Horovod jobs as `horovodrun` starts them: identity, rendezvous server and tuning."""

import contextlib
import math
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tfdist.cluster import Cluster
from tfdist.horovod_build.installed import parts_in

PORT_VARIABLE = "HOROVOD_GLOO_RENDEZVOUS_PORT"
# Identify a Horovod process; values inherited from another launcher would be wrong.
IDENTITY_VARIABLES = (
    "HOROVOD_CONTROLLER",
    "HOROVOD_CPU_OPERATIONS",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
    "HOROVOD_ELASTIC",
    "HOROVOD_GLOO_IFACE",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR",
    PORT_VARIABLE,
    "HOROVOD_HOSTNAME",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
)

_ADDRESS = "127.0.0.1"
_HOSTNAME = "localhost"
_LOOPBACK = "lo"
_POLL_SECONDS = 0.05

# Options of `horovodrun`: variable, factor and meaning of 0.
_NUMBERS = {
    "fusion_threshold_mb": (
        "HOROVOD_FUSION_THRESHOLD",
        2**20,
        "to send each tensor by itself",
    ),
    "cycle_time_ms": ("HOROVOD_CYCLE_TIME", 1, "to never wait for more tensors"),
    "cache_capacity": ("HOROVOD_CACHE_CAPACITY", 1, "for no cache"),
    "stall_check_warning_time_seconds": (
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        1,
        "to warn at once",
    ),
    "stall_check_shutdown_time_seconds": (
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        1,
        "to never end a stalled job",
    ),
}
_SWITCHES = {
    "timeline_mark_cycles": "HOROVOD_TIMELINE_MARK_CYCLES",
    "autotune": "HOROVOD_AUTOTUNE",
    "no_stall_check": "HOROVOD_STALL_CHECK_DISABLE",
}
_TEXTS = {
    "timeline": "HOROVOD_TIMELINE",
    "autotune_log_file": "HOROVOD_AUTOTUNE_LOG",
    "log_level": "HOROVOD_LOG_LEVEL",
}
# Horovod ignores each option without the other.
_NEEDS = {"timeline_mark_cycles": "timeline", "autotune_log_file": "autotune"}
_DEFAULT_WARNING_SECONDS = 60

TUNING_OPTIONS = (*_NUMBERS, *_SWITCHES, *_TEXTS)


def identity_of(cluster: Cluster, port: int) -> dict[str, str]:
    """Return the variables that identify a Horovod process."""
    return {
        "HOROVOD_RANK": str(cluster.rank),
        "HOROVOD_SIZE": str(cluster.size),
        "HOROVOD_LOCAL_RANK": str(cluster.local_rank),
        "HOROVOD_LOCAL_SIZE": str(cluster.local_size),
        # All processes run on one host.
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_HOSTNAME": _HOSTNAME,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": _ADDRESS,
        PORT_VARIABLE: str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": _LOOPBACK,
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
    # Background processes of a shell ignore SIGINT.
    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        with contextlib.suppress(KeyboardInterrupt), rendezvous(size, port):
            signal.pause()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
    if parts is None:
        raise ImportError(
            "Horovod was built without TensorFlow. "
            f"Received: {folder}, which has no tensorflow/mpi_lib. "
            "Run `tfdist horovod install` to build it again."
        )
    if "Gloo" not in parts:
        raise ImportError(
            "Horovod was built without Gloo, which connects its processes. "
            f"Received: {folder}, with {', '.join(parts) or 'neither MPI nor NCCL'}. "
            "Run `tfdist horovod install` to build it again, or start the program with "
            "mpirun."
        )


def tuning_variables(options: Mapping[str, Any]) -> dict[str, str]:
    """Return Horovod's tuning variables for options other than None and False."""
    given = {
        name: options[name]
        for name in TUNING_OPTIONS
        if options.get(name) is not None and options[name] is not False
    }
    _check_tuning(given)
    variables = {}
    for name, value in given.items():
        if name in _NUMBERS:
            variable, factor, _ = _NUMBERS[name]
            variables[variable] = str(value * factor)
        elif name in _SWITCHES:
            variables[_SWITCHES[name]] = "1"
        else:
            variables[_TEXTS[name]] = str(value)
    return variables


def _option(name: str) -> str:
    """Return the name of an option on the command line."""
    return "--" + name.replace("_", "-")


def _check_tuning(given: Mapping[str, Any]) -> None:
    """Refuse invalid numbers and options without effect, which Horovod would ignore."""
    for name, (_, _, zero) in _NUMBERS.items():
        if name in given and not 0 <= given[name] < math.inf:
            raise ValueError(
                f"{_option(name)} must not be negative, nor infinite. "
                f"Received: {_option(name)} {given[name]}. Use 0 {zero}."
            )
    for name, other in _NEEDS.items():
        if name in given and other not in given:
            raise ValueError(
                f"{_option(name)} has no effect without {_option(other)}. "
                f"Received: {_option(name)} alone. "
                f"Give {_option(other)} too, or leave it out."
            )
    warning, shutdown = [
        f"stall_check_{time}_time_seconds" for time in ("warning", "shutdown")
    ]
    for name in (warning, shutdown):
        if name in given and "no_stall_check" in given:
            raise ValueError(
                f"{_option(name)} has no effect with --no-stall-check. "
                "Received: both. Leave one of them out."
            )
    warning_seconds = given.get(warning, _DEFAULT_WARNING_SECONDS)
    if 0 < given.get(shutdown, 0) < warning_seconds:
        raise ValueError(
            f"{_option(shutdown)} must not be less than {_option(warning)}, as Horovod "
            "would never end the job then. "
            f"Received: {given[shutdown]} s, with a warning after {warning_seconds} s. "
            "Give a longer time, or a shorter one for the warning."
        )
