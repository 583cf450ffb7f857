"""The gate to a port in a network of its own."""

import contextlib
import socket
import subprocess
import sys
import threading

import pytest

from tfdist.launching.mpi_gate import Gate, is_own

SECONDS = 120
NETLINK_SOCK_DIAG = 4
# Returns what it receives, in capital letters.
SERVER = """
import socketserver
from tfdist.launching.isolation import enter_network

class Upper(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line.upper())
        self.wfile.write(b"end")

class Server(socketserver.ThreadingTCPServer):
    request_queue_size = 500

enter_network()
server = Server(("127.0.0.1", {port}), Upper)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@contextlib.contextmanager
def server(port=0):
    """Run a server in a network of its own; yield its gate, and both ports."""
    words = [sys.executable, "-c", SERVER.format(port=port)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            inner = process.stdout.readline().strip()
            gate = Gate(process.pid)
            try:
                uri = f"job.0;tcp4://127.0.0.1:{inner}"
                led = gate.redirect({"PMIX_SERVER_URI4": uri, "PMIX_RANK": inner})
                assert led["PMIX_RANK"] == inner
                start, _, outer = led["PMIX_SERVER_URI4"].rpartition(":")
                assert start == "job.0;tcp4://127.0.0.1"
                yield gate, int(inner), int(outer)
            finally:
                gate.close()
        finally:
            process.kill()


def connect(port, host="127.0.0.1"):
    """Return a connection whose wait for an answer ends."""
    return socket.create_connection((host, port), timeout=SECONDS)


def read_all(peer):
    """Return what comes until the end."""
    return b"".join(iter(lambda: peer.recv(1 << 16), b""))


def test_the_user_reaches_the_port_until_both_directions_end():
    with server() as (_, inner, outer), connect(outer) as peer:
        with pytest.raises(ConnectionRefusedError):
            connect(inner)
        peer.sendall(b"hello\n")
        assert peer.recv(100) == b"HELLO\n"
        text = b"more" * 100_000 + b"\n"
        threading.Thread(target=peer.sendall, args=(text,)).start()
        with peer.makefile("rb") as answers:
            assert answers.readline() == text.upper()
        peer.shutdown(socket.SHUT_WR)
        assert read_all(peer) == b"end"


def test_a_port_that_is_taken_in_this_network():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with server(port) as (_, inner, outer), connect(outer) as peer:
            assert (inner, outer != inner) == (port, True)
            peer.sendall(b"hello\n")
            assert peer.recv(100) == b"HELLO\n"


def test_many_connections():
    with server() as (_, _, outer), contextlib.ExitStack() as stack:
        peers = [stack.enter_context(connect(outer)) for _ in range(300)]
        for number, peer in enumerate(peers):
            peer.sendall(f"peer {number}\n".encode())
        for number, peer in enumerate(peers):
            assert peer.recv(100) == f"PEER {number}\n".encode()


def test_the_port_is_one_of_ipv4():
    with server() as (_, _, outer):
        with pytest.raises(ConnectionRefusedError):
            connect(outer, "::1")
        with connect(outer, "::ffff:127.0.0.1") as peer:
            peer.sendall(b"hello\n")
            assert peer.recv(100) == b"HELLO\n"


def test_connections_end_with_the_gate():
    with server() as (gate, _, outer), connect(outer) as peer:
        peer.sendall(b"hello\n")
        assert peer.recv(100) == b"HELLO\n"
        gate.close()
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(100) == b""
        with pytest.raises(ConnectionRefusedError):
            connect(outer)


def test_a_connection_that_its_peer_has_closed_belongs_to_no_one():
    """The kernel may call root the owner of what is left of it."""
    with (
        socket.create_server(("127.0.0.1", 0)) as door,
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel,
    ):
        peer = connect(door.getsockname()[1])
        accepted, address = door.accept()
        with accepted:
            assert is_own(kernel, accepted, address)
            peer.close()
            assert not is_own(kernel, accepted, address)


def test_a_process_that_is_gone_has_no_gate():
    process = subprocess.Popen(["true"])
    process.wait()

    with pytest.raises(OSError, match="not open"):
        Gate(process.pid)
