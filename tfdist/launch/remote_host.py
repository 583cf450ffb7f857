"""A host on which an agent starts ranks for the launcher."""

import os
import select
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

from tfdist.launch.link import GREETING, Link
from tfdist.launch.remote_command import (
    DEFAULT_SSH,
    agent_line,
    carried_environment,
    ssh_command,
)
from tfdist.launch.remote_failures import explain_failure
from tfdist.rendezvous.wire import Message

_POLL_SECONDS = 0.1
_PINGS = 5
# How long the agent has to end, and ssh to say why the connection has.
_GOODBYE_SECONDS = 5.0
_EXPLANATION_SECONDS = 1.0


@dataclass(frozen=True)
class Patience:
    """How long to wait for hosts.

    Args:
        deadline: Until when, on the monotonic clock.
        signals: Where signals to the launcher are read from. Default None.
    """

    deadline: float
    signals: socket.socket | None = None

    def check(self) -> None:
        """Go on waiting, if there is no reason to stop.

        Raises:
            KeyboardInterrupt: If a signal has come; it can still be read.
            TimeoutError: If the time is over.
        """
        if self.signals is not None and select.select([self.signals], [], [], 0)[0]:
            raise KeyboardInterrupt
        if time.monotonic() > self.deadline:
            raise TimeoutError("no answer")


class RemoteHost:
    """The connection to the agent on a host, until its ranks are started.

    Args:
        host: The host, as ssh and the other hosts know it.
        ssh: The command that reaches it, with options of the user. Default "ssh".
        python: The interpreter there. Default: that of the launcher.
    """

    def __init__(
        self, host: str, *, ssh: str = DEFAULT_SSH, python: str = sys.executable
    ) -> None:
        self.host, self.python = host, python
        self.clock_offset = 0.0
        # Closed with the connection: what ssh says last is read from it.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        pythonpath = os.environ.get("PYTHONPATH")
        # In a session of its own, Ctrl-C at the terminal does not reach it.
        self.process = subprocess.Popen(
            ssh_command(ssh, host, agent_line(os.getcwd(), python, pythonpath)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            bufsize=0,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdout = self.process.stdout.fileno()
        self.link = Link(self._stdout, self.process.stdin.fileno())

    def connect(self, patience: Patience) -> dict[str, str]:
        """Wait until the agent has answered, and set our clocks by each other.

        Args:
            patience: How long to wait.

        Returns:
            The versions of what is installed there.

        Raises:
            OSError: If the host cannot be reached, or no agent be started there.
        """
        try:
            self._skip_to_greeting(patience)
            hello = self._hear("hello", patience)
            self._set_clock(patience)
        except (ConnectionError, TimeoutError, ValueError) as error:
            raise OSError(self.explain(error)) from None
        versions: dict[str, str] = hello["versions"]
        return versions

    def prepare(self, ports: int, patience: Patience) -> tuple[list[int], list[int]]:
        """Ask for free ports, and hand over the environment.

        Args:
            ports: How many ports.
            patience: How long to wait.

        Returns:
            The ports, and the cores of the host.

        Raises:
            OSError: If there are not so many, or the host does not answer.
        """
        variables = carried_environment(os.environ)
        try:
            self.link.send({"kind": "environment", "variables": variables})
            answer = self._ask({"kind": "prepare", "ports": ports}, "ready", patience)
        except (ConnectionError, TimeoutError, ValueError) as error:
            raise OSError(self.explain(error)) from None
        return answer["ports"], answer["cores"]

    def explain(self, error: Exception) -> str:
        """Say why the host could not be used, or was lost.

        Args:
            error: What was raised here.

        Returns:
            What is wrong, what was received, and what to do.
        """
        if isinstance(error, ConnectionError):
            # Now ssh can say how it has ended.
            self._end(_EXPLANATION_SECONDS)
        self._errors.seek(0)
        printed = self._errors.read().decode(errors="replace").strip()
        return explain_failure(
            self.host, self.python, os.getcwd(), self.process.poll(), printed, error
        )

    def close(self) -> None:
        """End the agent, and all that it has started."""
        self._end(_GOODBYE_SECONDS)
        self._errors.close()

    def _end(self, grace_seconds: float) -> None:
        """Close the connection; cut it if that takes too long."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self.process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _skip_to_greeting(self, patience: Patience) -> None:
        """Read past what the login shell prints, byte by byte."""
        line = b""
        while line != GREETING:
            line = line if not line.endswith(b"\n") else b""
            self._wait(patience)
            byte = os.read(self._stdout, 1)
            if not byte:
                raise ConnectionError("the connection was closed")
            line += byte

    def _set_clock(self, patience: Patience) -> None:
        """Find out what the clock there says when ours says 0."""
        best = float("inf")
        for _ in range(_PINGS):
            sent = time.monotonic()
            there = self._ask({"kind": "clock"}, "clock", patience)["now"]
            seconds = time.monotonic() - sent
            if seconds < best:
                best = seconds
                self.clock_offset = there - sent - seconds / 2

    def _ask(self, message: Message, kind: str, patience: Patience) -> Message:
        """Send a message, and wait for the answer."""
        self.link.send(message)
        return self._hear(kind, patience)

    def _hear(self, kind: str, patience: Patience) -> Message:
        """Wait for a message of a kind; nothing but beats comes before it."""
        while True:
            self._wait(patience)
            for message in self.link.receive():
                if message["kind"] == kind:
                    return message
                if message["kind"] == "refused":
                    raise OSError(f"On {self.host}: {message['text']}")

    def _wait(self, patience: Patience) -> None:
        """Wait until there is something to read, and write what there is room for."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            while not selector.select(_POLL_SECONDS):
                self.link.flush()
                self.link.beat()
                patience.check()
