"""A process of a run as the launcher sees it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path

from tfdist.cluster.this_host import members_of
from tfdist.launching.job import ProcessSpec

_GUARDIAN = Path(__file__).with_name("guardian.py")
# A killed process may take a moment to end.
_LEFT_SECONDS = 5.0
_POLL_SECONDS = 0.01


class RankProcess(ABC):
    """The launcher's end of the socket to the guardian of a rank, on any host."""

    def __init__(self, spec: ProcessSpec, control: socket.socket) -> None:
        self.spec = spec
        self.rank = spec.rank
        self.exit_code: int | None = None
        self.ended_seconds = float("inf")
        self.is_gone = False
        # Whether the launcher itself sent SIGKILL.
        self.is_to_be_killed = False
        self._control = control

    def fileno(self) -> int:
        """Return the file descriptor from which `receive` reads."""
        return self._control.fileno()

    def receive(self) -> None:
        """Read the guardian's report of the exit, or the end of file."""
        # `ended_seconds` is measured where the rank exited, on our monotonic clock.
        # `is_gone` means that no descendant is left either.
        report = b""
        with contextlib.suppress(ConnectionResetError):
            report = self._control.recv(4096)
        if report:
            self.exit_code, nanoseconds = map(int, report.split())
            self.ended_seconds = nanoseconds / 1e9
            return
        self.is_gone = True
        if self.exit_code is None:
            # The guardian was killed, so the kernel killed the rank.
            self.exit_code = -signal.SIGKILL
            self.ended_seconds = time.monotonic()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the rank's process group; SIGKILL kills all descendants."""
        self.is_to_be_killed |= number == signal.SIGKILL
        with contextlib.suppress(OSError):
            self._control.send(bytes([number]))

    @abstractmethod
    def kill_guardian(self) -> None:
        """Kill a guardian that hangs, and with it the rank."""

    def hang_up(self) -> None:
        """Close the socket, on which the guardian kills what is left of the rank."""
        self._control.close()

    @abstractmethod
    def wait(self) -> None:
        """Wait for the guardian to exit."""


class GuardedProcess(RankProcess):
    """A rank on this machine, which its guardian kills if the launcher dies."""

    def __init__(self, spec: ProcessSpec, *, stdout: int, stderr: int) -> None:
        control, theirs = socket.socketpair()
        super().__init__(spec, control)
        # -I -S: start in milliseconds, independent of the user's environment.
        guardian = (sys.executable, "-I", "-S", str(_GUARDIAN), str(theirs.fileno()))
        command = b"\0".join(map(os.fsencode, spec.argv))
        cores = ",".join(map(str, spec.cores))
        inherited = {n: v for n, v in os.environ.items() if n not in spec.unset}
        try:
            self._guardian = subprocess.Popen(
                [*guardian, str(len(command)), cores],
                env={**inherited, **spec.env},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except BaseException:
            self._control.close()
            raise
        finally:
            theirs.close()
        # `receive` handles a guardian that is already gone.
        with contextlib.suppress(OSError):
            self._control.sendall(command)

    def kill_guardian(self) -> None:
        """Kill a guardian that hangs, and with it the rank."""
        self.is_to_be_killed = True
        self._guardian.kill()

    def receive(self) -> None:
        """Read the guardian's report of the exit, or the end of file."""
        super().receive()
        if self.is_gone:
            self.wait()

    def wait(self) -> None:
        """Wait for the guardian to exit, and kill what a killed one has left."""
        # Until it is reaped, no other session has its number.
        with contextlib.suppress(ChildProcessError):
            if self._guardian.returncode is None:
                ended = os.waitid(os.P_PID, self._guardian.pid, os.WEXITED | os.WNOWAIT)
                if ended is not None and ended.si_status != 0:
                    _kill_session(self._guardian.pid)
        self._guardian.wait()


def _kill_session(session: int) -> None:
    """Kill all processes of a session, and those that they start meanwhile."""
    deadline = time.monotonic() + _LEFT_SECONDS
    while (left := members_of(session)) and time.monotonic() < deadline:
        for process_id in left:
            # It may have ended, or be another user's.
            with contextlib.suppress(OSError):
                os.kill(process_id, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
