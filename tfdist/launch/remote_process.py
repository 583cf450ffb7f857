"""A rank on another host, as the launcher sees it."""

import os
import signal
import socket

from tfdist.launch.process import RankProcess
from tfdist.launch.remote import RemoteRanks
from tfdist.launch.remote_rank import RemoteRank
from tfdist.launch.spec import ProcessSpec


class RemoteProcess(RankProcess):
    """A rank on another host.

    Args:
        ranks: The ranks of that host.
        spec: What to start.
        stdout: File descriptor that the rank's output is written to.
        stderr: The same for its errors.
    """

    def __init__(
        self, ranks: RemoteRanks, spec: ProcessSpec, *, stdout: int, stderr: int
    ) -> None:
        control, theirs = socket.socketpair()
        super().__init__(spec, control)
        self._ranks = ranks
        self._rank = RemoteRank(spec, theirs, (os.dup(stdout), os.dup(stderr)))
        ranks.start(self._rank)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the rank: at once, as this process may be stopped next.

        Args:
            number: The signal.
        """
        self.is_to_be_killed |= number == signal.SIGKILL
        self._ranks.signal(self._rank, number)

    def kill_guardian(self) -> None:
        """Cut the connection to the host: its agent ends everything then."""
        self.is_to_be_killed = True
        self._ranks.cut()

    def wait(self) -> None:
        """Wait until nothing is left of it, as far as is known here."""
        self._rank.is_over.wait()
