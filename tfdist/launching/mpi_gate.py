"""Gate to a port of `mpirun`, which has a network of its own, for one user alone."""

import contextlib
import ctypes
import errno
import os
import re
import resource
import select
import socket
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import NoReturn

_LOOPBACK = "127.0.0.1"
# <netinet/tcp.h>
_ESTABLISHED = 1
# <linux/netlink.h> and <linux/sock_diag.h>
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
# <linux/inet_diag.h>: the requests and the answers, each behind its header.
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI2s2s4s12x4s12xIQ")
_ANSWER = struct.Struct("=BBBB48sIIIII")
_ALL = 0xFFFFFFFF
_NO_COOKIE = 0xFFFFFFFFFFFFFFFF
# <linux/sched.h>
_NAMESPACES = {"user": 0x10000000, "net": 0x40000000}

# <asm/unistd.h>
_SYS_PIDFD_GETFD = 438
_URI_VARIABLE = "PMIX_SERVER_URI"
_PORT = re.compile(r"(?<=://127\.0\.0\.1:)\d+")
# As many as the ranks of a large host.
_WAITING = 1024
_END_SECONDS = 5.0

Address = tuple[str, int]


class Gate:
    """A process by which only this user reaches `mpirun` in a network of its own."""

    def __init__(self, process_id: int) -> None:
        """Raise OSError if nothing may enter the network of this process."""
        # It is taken before the ranks learn it, so that no other program can be there.
        with socket.create_server(("127.0.0.1", 0), backlog=_WAITING) as server:
            self._port = str(server.getsockname()[1])
            numbers = [str(server.fileno()), str(process_id)]
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, *numbers],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                pass_fds=[server.fileno()],
                start_new_session=True,
                text=True,
            )
        self._target = ""
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            self.close()
            raise OSError("The gate is not open.")

    def redirect(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a rank, with the gate in place of MPI's port."""
        changed = dict(variables)
        for name in filter(lambda name: name.startswith(_URI_VARIABLE), variables):
            changed[name] = _PORT.sub(self._replace, variables[name])
        return changed

    def close(self) -> None:
        """End the gate, and the connections through it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _replace(self, port: re.Match[str]) -> str:
        """Return the port of the gate, which learns where it leads."""
        if not self._target:
            self._target = port[0]
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.write(f"{port[0]}\n")
                self._process.stdin.flush()
        return self._port


def main(listener: int, process: int) -> NoReturn:
    """Pass connections on to a port of a process, until standard input ends."""
    server = socket.socket(fileno=listener)
    # It stays one of this network, with the user ids of this namespace.
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
    _check(kernel)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _enter_network_of(process)
    print("open", flush=True)
    port = int(sys.stdin.readline() or 0)
    while sys.stdin not in select.select([sys.stdin, server], [], [])[0]:
        try:
            peer, address = server.accept()
        except OSError:
            # The peer is gone again.
            continue
        if is_own(kernel, peer, address):
            threading.Thread(target=_pass_on, args=(peer, port), daemon=True).start()
        else:
            peer.close()
    os._exit(0)


def is_own(kernel: socket.socket, peer: socket.socket, address: Address) -> bool:
    """Return whether this user holds the other end of a connection."""
    if _owner(kernel, address, peer.getsockname()) != os.geteuid():
        return False
    # If this connection still stands, the answer was not about a later one with the
    # same addresses.
    state = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return state == _ESTABLISHED


def _check(kernel: socket.socket) -> None:
    """Raise OSError if the kernel does not tell whose a connection is."""
    # At a port of its own, which others have no time to fill.
    with (
        socket.create_server((_LOOPBACK, 0)) as server,
        socket.create_connection(server.getsockname()) as own,
    ):
        user = _owner(kernel, own.getsockname(), own.getpeername())
    if user != os.geteuid():
        raise OSError(errno.ENOTSUP, "sock_diag", f"user {user}")


def _owner(kernel: socket.socket, local: Address, remote: Address) -> int | None:
    """Return the user whose socket has these addresses, None if none is connected."""
    request = _REQUEST.pack(
        *(socket.AF_INET, socket.IPPROTO_TCP, 0, _ALL),
        *(struct.pack("!H", port) for _, port in (local, remote)),
        *(socket.inet_aton(host) for host, _ in (local, remote)),
        *(0, _NO_COOKIE),
    )
    size = _HEADER.size + len(request)
    header = _HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
    kernel.send(header + request)
    answer = kernel.recv(1 << 12)
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    _, state, *_, user, _ = _ANSWER.unpack_from(answer, _HEADER.size)
    # The kernel shows what is left of a closed socket, too.
    return int(user) if state == _ESTABLISHED else None


def _pass_on(peer: socket.socket, port: int) -> None:
    """Connect to the port, and pass bytes on in both directions until both end."""
    inside = (_LOOPBACK, port)
    with peer, contextlib.suppress(OSError), socket.create_connection(inside) as server:
        back = threading.Thread(target=_copy, args=(server, peer), daemon=True)
        back.start()
        _copy(peer, server)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Pass bytes on in one direction until it ends."""
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        # One side is lost, and so is the connection.
        for end in source, target:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _enter_network_of(process: int) -> None:
    """Enter the network of a process, if need be by its user namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder = f"/proc/{process}/ns"
    places = {name: os.open(f"{folder}/{name}", os.O_RDONLY) for name in _NAMESPACES}
    for name, place in places.items():
        is_same = os.path.samestat(os.fstat(place), os.stat(f"/proc/self/ns/{name}"))
        if not is_same and libc.setns(place, _NAMESPACES[name]) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), f"setns {name}")
        os.close(place)


def keep_to_loopback(process_id: int) -> None:
    """Let only this host reach the ports of `mpirun`, which opens them for others."""
    # Open MPI 5.0 has no option for it. The ports stay as they are where the kernel is
    # older than Linux 5.7, or a container forbids this call.
    libc = ctypes.CDLL(None)
    try:
        handle = os.pidfd_open(process_id)
    except OSError:
        return
    for number in os.listdir(f"/proc/{process_id}/fd"):
        copy = libc.syscall(_SYS_PIDFD_GETFD, handle, int(number), 0)
        if copy < 0:
            continue
        if not stat.S_ISSOCK(os.fstat(copy).st_mode):
            os.close(copy)
            continue
        with socket.socket(fileno=copy) as port, contextlib.suppress(OSError):
            if port.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                port.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
    os.close(handle)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
