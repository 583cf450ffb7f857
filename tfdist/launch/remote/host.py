"""The connection to the agent on a host: commands, handshake and failures."""

import os
import select
import selectors
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from tfdist.launch.remote.link import GREETING, Link
from tfdist.rendezvous.wire import Message

DEFAULT_SSH = "ssh"
# No password and no terminal; the user's ssh config provides the rest.
_SSH_OPTIONS = ("-T", "-o", "BatchMode=yes")
# A step that overlaps all others, with all cores of the job on that node.
_SRUN_OPTIONS = (
    *("--overlap", "--nodes=1", "--ntasks=1", "--unbuffered"),
    *("--cpu-bind=none", "--mpi=none"),
)
# Variables specific to a host, a login or the launcher of this process.
_NOT_CARRIED = frozenset(
    (
        *("DISPLAY", "HOME", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL"),
        *("SHLVL", "TERM", "TMPDIR", "USER", "XAUTHORITY", "_"),
    )
)
_PREFIXES_NOT_CARRIED = ("DBUS_", "OMPI_", "PMI", "SLURM", "SSH_", "XDG_")

_POLL_SECONDS = 0.1
_PINGS = 5
# Grace periods for the agent to exit, and for ssh to explain a lost connection.
_GOODBYE_SECONDS = 5.0
_EXPLANATION_SECONDS = 1.0

_LONGEST_SHOWN = 300
_SAME_ENVIRONMENT = (
    "Make the same environment there as here, or name its interpreter: --python."
)
_FIREWALL = "See that it is up, and that no firewall is between: ssh {host} true"
# A text that ssh or the shell prints, its cause, and the remedy.
_CAUSES = (
    (
        "No module named",
        "tfdist is not installed for {python} on {host}.",
        _SAME_ENVIRONMENT,
    ),
    (
        "Host key verification failed",
        "The key of the host {host} is not known here, or has changed.",
        "Connect to it once by hand and compare the key: ssh {host}",
    ),
    (
        "Permission denied",
        "{host} does not let you in without a password.",
        "Put your public key there: ssh-copy-id {host}",
    ),
    (
        "Could not resolve hostname",
        "The name of the host {host} is not known here.",
        "Correct the name, or give the host an entry in ~/.ssh/config.",
    ),
    (
        "Connection refused",
        "No ssh server listens on {host}.",
        "Start sshd there, or give its port, as in --ssh 'ssh -p 2222'.",
    ),
    ("timed out", "{host} does not answer.", _FIREWALL),
    ("No route to host", "There is no way to {host}.", _FIREWALL),
    (
        "{folder}",
        "The working directory does not exist on {host}.",
        "Start from a folder that all hosts have, as on a shared file system.",
    ),
    ("{python}", "There is no such interpreter on {host}.", _SAME_ENVIRONMENT),
)


@dataclass(frozen=True)
class Patience:
    """A deadline on the monotonic clock, and signals that end a wait early."""

    deadline: float
    signals: socket.socket | None = None

    def check(self) -> None:
        """Raise TimeoutError after the deadline, KeyboardInterrupt after a signal."""
        if self.signals is not None and select.select([self.signals], [], [], 0)[0]:
            raise KeyboardInterrupt
        if time.monotonic() > self.deadline:
            raise TimeoutError("no answer")


class RemoteHost:
    """The connection to the agent on a host until its ranks start."""

    def __init__(
        self, host: str, *, ssh: str = DEFAULT_SSH, python: str = sys.executable
    ) -> None:
        self.host, self.python = host, python
        # The remote clock minus ours.
        self.clock_offset = 0.0
        # Stderr of ssh, read after a failure; closed with the connection.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        pythonpath = os.environ.get("PYTHONPATH")
        # A session of its own, so that Ctrl-C at the terminal does not reach it.
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
        self.link = Link(self.process.stdout.fileno(), self.process.stdin.fileno())

    def connect(self, patience: Patience) -> dict[str, str]:
        """Wait for the agent, measure its clock, and return its installed versions."""
        try:
            self._skip_to_greeting(patience)
            hello = self._receive("hello", patience)
            self._measure_clock(patience)
        except (ConnectionError, TimeoutError, ValueError) as error:
            raise OSError(self.explain(error)) from None
        versions: dict[str, str] = hello["versions"]
        return versions

    def prepare(self, ports: int, patience: Patience) -> tuple[list[int], list[int]]:
        """Send the environment; return free ports and the cores of the host."""
        variables = carried_environment(os.environ)
        try:
            self.link.send({"kind": "environment", "variables": variables})
            answer = self._ask({"kind": "prepare", "ports": ports}, "ready", patience)
        except (ConnectionError, TimeoutError, ValueError) as error:
            raise OSError(self.explain(error)) from None
        return answer["ports"], answer["cores"]

    def explain(self, error: Exception) -> str:
        """Return why the host failed or was lost."""
        if isinstance(error, ConnectionError):
            # Let ssh exit, which explains the failure.
            self._end(_EXPLANATION_SECONDS)
        self._errors.seek(0)
        printed = self._errors.read().decode(errors="replace").strip()
        names = {
            "host": self.host.strip("[]"),
            "python": self.python,
            "folder": os.getcwd(),
        }
        return explain_failure(names, self.process.poll(), printed, error)

    def close(self) -> None:
        """End the agent and everything it started."""
        self._end(_GOODBYE_SECONDS)
        self._errors.close()

    def _end(self, grace_seconds: float) -> None:
        """Close the connection; kill ssh after the grace period."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self.process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _skip_to_greeting(self, patience: Patience) -> None:
        """Skip the output of the login shell, byte by byte."""
        line = b""
        while line != GREETING:
            line = line if not line.endswith(b"\n") else b""
            self._wait(patience)
            byte = os.read(self.link.reading, 1)
            if not byte:
                raise ConnectionError("the connection was closed")
            line += byte

    def _measure_clock(self, patience: Patience) -> None:
        """Measure the clock offset by the fastest of several round trips."""
        best = float("inf")
        for _ in range(_PINGS):
            sent = time.monotonic()
            there = self._ask({"kind": "clock"}, "clock", patience)["now"]
            seconds = time.monotonic() - sent
            if seconds < best:
                best = seconds
                self.clock_offset = there - sent - seconds / 2

    def _ask(self, message: Message, kind: str, patience: Patience) -> Message:
        """Send a message and wait for the answer."""
        self.link.send(message)
        return self._receive(kind, patience)

    def _receive(self, kind: str, patience: Patience) -> Message:
        """Wait for a message of a kind, skipping heartbeats."""
        while True:
            self._wait(patience)
            for message in self.link.receive():
                if message["kind"] == kind:
                    return message
                if message["kind"] == "refused":
                    raise OSError(f"On {self.host}: {message['text']}")

    def _wait(self, patience: Patience) -> None:
        """Wait for input, while flushing output and sending heartbeats."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.link.reading, selectors.EVENT_READ)
            while not selector.select(_POLL_SECONDS):
                self.link.flush()
                self.link.beat()
                patience.check()


def ssh_command(ssh: str, host: str, line: str) -> list[str]:
    """Return the command that runs a line on a host, through ssh or Slurm's srun."""
    words = shlex.split(ssh)
    if PurePath(words[0]).name == "srun":
        return [*words, *_SRUN_OPTIONS, f"--nodelist={host}", "sh", "-c", line]
    return [*words, *_SSH_OPTIONS, host.strip("[]"), line]


def agent_line(folder: str, python: str, pythonpath: str | None) -> str:
    """Return the shell line that starts the agent in a folder."""
    words = [python, "-m", "tfdist.launch.remote.agent"]
    if pythonpath is not None:
        words = ["env", f"PYTHONPATH={pythonpath}", *words]
    return f"cd {shlex.quote(folder)} && exec {shlex.join(words)}"


def carried_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are not specific to a host, a login or a process."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _NOT_CARRIED and not name.startswith(_PREFIXES_NOT_CARRIED)
    }


def explain_failure(
    names: Mapping[str, str], exit_code: int | None, printed: str, error: Exception
) -> str:
    """Return why no agent answers; `names` has the remote host, python and folder."""
    host, python = names["host"], names["python"]
    for sign, what, advice in _CAUSES if exit_code else ():
        if sign.format(**names) in printed:
            last = _last_line(printed, sign.format(**names))
            return f"{what.format(**names)} Received: {last}. {advice.format(**names)}"
    received = _last_line(printed) or str(error) or "nothing"
    if isinstance(error, ValueError):
        return (
            f"What answers on {host} is not tfdist. Received: {error} "
            f"See what runs there: ssh {host} {python} --version"
        )
    if exit_code is None:
        return (
            f"{host} has not answered in time. Received: {received}. "
            f"See what takes so long: ssh {host} true; or give it more time: "
            "--start-timeout."
        )
    return (
        f"The connection to {host} has ended with exit code {exit_code}. "
        f"Received: {received}. Try by hand: ssh {host} {python} --version"
    )


def _last_line(printed: str, sign: str = "") -> str:
    """Return the last line that contains `sign`, stripped and shortened."""
    lines = [line.strip() for line in printed.splitlines() if sign in line]
    return lines[-1][:_LONGEST_SHOWN].rstrip(".\r") if lines else ""
