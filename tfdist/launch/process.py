"""One rank as the launcher sees it: started, signalled, ended."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path

from tfdist.launch.spec import ProcessSpec

_GUARDIAN = Path(__file__).with_name("guardian.py")


class RankProcess(ABC):
    """What the launcher has of a rank, wherever it runs: the line to its guardian.

    Args:
        spec: What is started.
        control: The socket at whose other end the guardian is.
    """

    def __init__(self, spec: ProcessSpec, control: socket.socket) -> None:
        self.spec = spec
        self.rank = spec.rank
        self.exit_code: int | None = None
        self.ended_seconds = float("inf")
        self.is_gone = False
        # Whether the launcher has asked for the kill.
        self.is_to_be_killed = False
        self._control = control

    def fileno(self) -> int:
        """Return the file descriptor on which `receive` has something to read."""
        return self._control.fileno()

    def receive(self) -> None:
        """Read the guardian's report, and find out that it is gone.

        Afterwards `exit_code` is the rank's exit code, or minus the signal that killed
        it, once it has ended; `ended_seconds` is when that was, on the monotonic clock,
        taken where it happened and so comparable between ranks; `is_gone` tells whether
        nothing of the rank is left.
        """
        report = b""
        with contextlib.suppress(ConnectionResetError):
            report = self._control.recv(4096)
        if report:
            code, nanoseconds = report.split()
            self.exit_code = int(code)
            self.ended_seconds = int(nanoseconds) / 1e9
            return
        self.is_gone = True
        if self.exit_code is None:
            # Somebody killed the guardian, and the kernel then the rank.
            self.exit_code = -signal.SIGKILL
            self.ended_seconds = time.monotonic()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the rank and its process group; SIGKILL takes all with it.

        Args:
            number: The signal.
        """
        self.is_to_be_killed |= number == signal.SIGKILL
        with contextlib.suppress(OSError):
            self._control.send(bytes([number]))

    @abstractmethod
    def kill_guardian(self) -> None:
        """Kill the guardian, and with it the rank, if it does not do its work."""

    def hang_up(self) -> None:
        """Let the guardian end whatever is left of the rank, at once."""
        self._control.close()

    @abstractmethod
    def wait(self) -> None:
        """Wait until the guardian has done so."""


class GuardedProcess(RankProcess):
    """A rank on this machine, and its guardian.

    The guardian is what makes the promise that nothing is left behind: it ends
    everything that came from the rank when the connection to this object ends, also
    because the launcher was killed.

    Args:
        spec: What to start.
        stdout: File descriptor that the rank writes its output to.
        stderr: The same for its errors.
    """

    def __init__(self, spec: ProcessSpec, *, stdout: int, stderr: int) -> None:
        control, theirs = socket.socketpair()
        super().__init__(spec, control)
        # -I -S: it starts in a few milliseconds, whatever the user's environment.
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
        # If the guardian is gone already, `receive` finds that out.
        with contextlib.suppress(OSError):
            self._control.sendall(command)

    def kill_guardian(self) -> None:
        """Kill the guardian, and with it the rank, if it does not do its work."""
        self.is_to_be_killed = True
        self._guardian.kill()

    def wait(self) -> None:
        """Wait until the guardian has done so."""
        self._guardian.wait()
