"""What the processes of a Horovod job get from their launcher, besides their start.

It is what `horovodrun --gloo` gives them: variables, and a server at which they find
each other. The server is Horovod's own, and here alone the launcher imports Horovod.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from tfdist.cluster import Cluster
from tfdist.horovod_build.installed import parts_in

PORT_VARIABLE = "HOROVOD_GLOO_RENDEZVOUS_PORT"
# What tells a process of Horovod who it is. From outside of the job, as of another
# launcher, it would tell wrong.
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


def identity_of(cluster: Cluster, port: int) -> dict[str, str]:
    """Return the variables by which a process of Horovod knows who it is.

    Args:
        cluster: The cluster on this machine, as the process sees it.
        port: The port of `rendezvous`.

    Returns:
        The variables, with Gloo on the loopback for all that goes between processes.

    Example:
        >>> identity_of(Cluster(workers=("127.0.0.1:1",)), 2000)["HOROVOD_SIZE"]
        '1'
    """
    return {
        "HOROVOD_RANK": str(cluster.rank),
        "HOROVOD_SIZE": str(cluster.size),
        "HOROVOD_LOCAL_RANK": str(cluster.local_rank),
        "HOROVOD_LOCAL_SIZE": str(cluster.local_size),
        # Its number among the hosts, of which there is one.
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
    """Serve, while the block runs, what Horovod's processes need to find each other.

    Horovod's own runner listens on every address of the machine. This server can be
    reached from this machine alone.

    Args:
        size: How many processes.
        port: Where to listen.

    Yields:
        Nothing.

    Raises:
        ImportError: If Horovod is not installed, or was built without TensorFlow or
            without Gloo.
        OSError: If nobody can listen there.
    """
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
    # A process that has been ended while it asked is neither news nor waited for.
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
    """Serve processes that somebody starts by hand, until Ctrl-C or SIGTERM.

    Args:
        size: How many processes.
        port: Where to listen.
    """
    # A shell lets what it starts in the background ignore Ctrl-C.
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
    """Refuse a Horovod that is missing, or that cannot do what the job asks for."""
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
    if "gloo" not in parts:
        raise ImportError(
            "Horovod was built without Gloo, by which its processes are joined. "
            f"Received: {folder}, with {', '.join(parts) or 'neither MPI nor NCCL'}. "
            "Run `tfdist horovod install` to build it again, or start the program with "
            "mpirun."
        )
