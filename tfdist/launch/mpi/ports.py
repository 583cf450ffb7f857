"""The ports of an `mpirun`, and the processes that reach them."""

import contextlib
import ctypes
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping

from tfdist.launch.mpi import gate

# <asm/unistd.h>
_SYS_PIDFD_GETFD = 438
_URI_VARIABLE = "PMIX_SERVER_URI"
_PORT = re.compile(r"(?<=://127\.0\.0\.1:)\d+")
# As many as the ranks of a large host.
_WAITING = 1024
_END_SECONDS = 5.0


class Gate:
    """A process by which only this user reaches `mpirun` in a network of its own."""

    def __init__(self, process_id: int) -> None:
        """Raise OSError if nothing may enter the network of this process."""
        # It is taken before the ranks learn it, so that no other program can be there.
        with socket.create_server(("127.0.0.1", 0), backlog=_WAITING) as door:
            self._port = str(door.getsockname()[1])
            numbers = [str(door.fileno()), str(process_id)]
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", gate.__file__, *numbers],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                pass_fds=[door.fileno()],
                start_new_session=True,
                text=True,
            )
        self._target = ""
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            self.close()
            raise OSError("The gate is not open.")

    def lead(self, variables: Mapping[str, str]) -> dict[str, str]:
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
