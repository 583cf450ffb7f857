"""Another host: the connection to its agent, and its ranks for the launcher."""

import asyncio
import base64
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from pathlib import Path

from tfdist.cluster.launcher import PROGRESS_VARIABLE, write_notes
from tfdist.launching.job import ProcessSpec
from tfdist.launching.process import RankProcess
from tfdist.launching.remote.commands import (
    agent_line,
    carried_environment,
    local_environment,
    ssh_command,
)
from tfdist.launching.remote.messages import (
    MAX_BYTES_OF_AGENT,
    AgentLink,
    check_message,
    foreign,
    open_link,
    open_writer,
)
from tfdist.launching.result import EXIT_CODE_OF_LOST_HOST
from tfdist.rendezvous.wire import ForeignData, Message

DEFAULT_SSH = "ssh"
# Grace periods for the agent to exit, and for ssh to explain a lost connection.
_GOODBYE_SECONDS = 5.0
_EXPLANATION_SECONDS = 1.0

_LONGEST_SHOWN = 300
_SAME_ENVIRONMENT = (
    "Make the same environment there as here, or name its interpreter: --python."
)
# Whether a rank has ended before, and what then is not true.
_OUT_OF_TURN = {(True, "exit"), (False, "gone")}
_NO_ANSWER = (
    "{host} has not answered in time.",
    "Try by hand: ssh {host} true; or give it more time: --start-timeout.",
)
# A text that ssh or the shell prints, its cause, and the remedy; the last is for all.
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
    # First the longer path, which may lie in the other.
    ("{python}", "There is no such interpreter on {host}.", _SAME_ENVIRONMENT),
    (
        "{folder}",
        "The working directory does not exist on {host}.",
        "Start from a folder that all hosts have, as on a shared file system.",
    ),
    (
        "",
        "The connection to {host} has ended with exit code {code}.",
        "Try by hand: ssh {host} {python} --version",
    ),
)


class RemoteHost:
    """The connection to the agent on a host, in a thread with an event loop."""

    def __init__(
        self,
        name: str,
        slots: int,
        *,
        ssh: str = DEFAULT_SSH,
        python: str = sys.executable,
    ) -> None:
        self._name, self.ssh, self.python = name, ssh, python
        # The first message of the agent, or the reason why there is none.
        self.hello: Future[Message] = Future()
        self._slots = slots
        self._ranks: dict[int, RemoteProcess] = {}
        # The reason why the connection ended; None while it is open.
        self._end: str | None = None
        # Where the launcher looks for what rank 0 writes.
        self._progress: Path | None = None
        # Stderr of ssh, read after a failure; closed with the connection.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        line = agent_line(os.getcwd(), python, os.environ.get("PYTHONPATH"), slots)
        # A session of its own, so that Ctrl-C at the terminal does not reach it.
        self.process = subprocess.Popen(
            ssh_command(ssh, name, line),
            env=local_environment(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            bufsize=0,
        )
        self._link: AgentLink | None = None
        self._loop = asyncio.new_event_loop()
        self._serving = self._loop.create_task(self._serve())
        # A daemon thread: a blocked console cannot keep the launcher alive.
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[None, None, None]) -> None:
        """Run a coroutine in the thread of the host, and wait for it."""
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def start(self, rank: "RemoteProcess", stdout: int, stderr: int) -> None:
        """Start a rank; report it lost if the connection has ended."""
        for descriptor in (stdout, stderr):
            pipe = os.fdopen(descriptor, "wb", 0)
            rank.streams.append(await open_writer(pipe))
        self._ranks[rank.rank] = rank
        if self._end is not None:
            self._lose(rank, self._end)
            return
        assert self._link is not None
        if PROGRESS_VARIABLE in rank.spec.env:
            self._progress = Path(rank.spec.env[PROGRESS_VARIABLE])
        carried = carried_environment(os.environ, self.hello.result()["visible"])
        own = {n: v for n, v in carried.items() if n not in rank.spec.unset}
        env = {**own, **rank.spec.env}
        start = {"argv": rank.spec.argv, "env": env, "cores": rank.spec.cores}
        self._link.send({"kind": "start", "rank": rank.rank, **start})

    async def signal(self, rank: "RemoteProcess", number: signal.Signals) -> None:
        """Send a signal to a rank; no-op once the rank is over."""
        if self._ranks.get(rank.rank) is rank:
            assert self._link is not None
            self._link.send({"kind": "signal", "rank": rank.rank, "number": number})

    async def cut(self) -> None:
        """Give up the connection to the host, whose agent then kills everything."""
        self.process.kill()
        self._serving.cancel()

    def explain(self, error: Exception) -> str:
        """Return why the host failed or was lost."""
        if not isinstance(error, TimeoutError):
            # Let ssh exit, which explains the failure.
            self._await_exit(_EXPLANATION_SECONDS)
        self._errors.seek(0)
        printed = self._errors.read().decode(errors="replace").strip()
        lines = [line.strip() for line in printed.splitlines()] or [str(error)]
        code = self.process.poll()
        names = {"host": self._name.strip("[]"), "python": self.python}
        names |= {"folder": os.getcwd(), "code": str(code)}
        what, advice = _NO_ANSWER
        if code is not None:
            causes = _CAUSES if code else _CAUSES[-1:]
            text, what, advice = next(
                cause for cause in causes if cause[0].format(**names) in printed
            )
            lines = [line for line in lines if text.format(**names) in line]
        received = f"Received: {lines[-1][:_LONGEST_SHOWN].rstrip('.')}."
        return f"{what.format(**names)} {received} {advice.format(**names)}"

    def close(self) -> None:
        """Kill all processes that still run there, and close the connection."""
        with contextlib.suppress(CancelledError):
            self.call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._await_exit(_GOODBYE_SECONDS)
        self._errors.close()

    async def _stop(self) -> None:
        """End the conversation with the agent."""
        self._serving.cancel()
        await self._serving

    def _await_exit(self, grace_seconds: float) -> None:
        """Wait for ssh to exit; kill it after the grace period."""
        try:
            self.process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    async def _serve(self) -> None:
        """Exchange messages with the agent until either side ends the connection."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._link = await open_link(self.process.stdout, self.process.stdin)
        try:
            await self._link.skip_to_greeting()
            await self._link.receive(self._handle, MAX_BYTES_OF_AGENT)
        except ForeignData as error:
            received = error.received.rstrip(".")
            self._end = (
                f"What answers on {self._name} is no agent of this tfdist. Received: "
                f"{received}. See what is printed there (ssh {self._name} true). "
                f"{_SAME_ENVIRONMENT}"
            )
        except ConnectionError as error:
            self._end = self.explain(error)
        except TimeoutError as error:
            self._end = str(error)
        except asyncio.CancelledError:
            self._end = "it was given up"
        finally:
            self._link.close()
        if not self.hello.done():
            self.hello.set_exception(OSError(self._end))
        for rank in [*self._ranks.values()]:
            self._lose(rank, self._end)

    async def _handle(self, message: Message) -> None:
        """Pass a message of the agent on to the launcher."""
        check_message(message)
        kind = message["kind"]
        if kind == "hello":
            self._welcome(message)
        elif kind == "notes":
            if self._progress is not None:
                write_notes(self._progress, *message["notes"])
        else:
            rank = self._ranks.get(message["rank"])
            # A rank ends once, and is then gone.
            if rank is None or (rank.has_reported, kind) in _OUT_OF_TURN:
                raise foreign(message)
            if kind == "output":
                await self._print(rank, message)
            elif kind == "exit":
                rank.report(message["code"], time.monotonic() - message["ago"])
            else:
                self._release(rank)

    def _welcome(self, hello: Message) -> None:
        """Pass on how the agent introduces itself, with a port for each slot."""
        has_ports = "refusal" in hello or len(hello["ports"]) == self._slots
        if self.hello.done() or not has_ports:
            raise foreign(hello)
        self.hello.set_result(hello)

    async def _print(self, rank: "RemoteProcess", message: Message) -> None:
        """Pass on what a rank has printed."""
        assert self._link is not None
        try:
            data = base64.b64decode(message["data"], validate=True)
        except ValueError:
            raise foreign(message) from None
        stream = rank.streams[message["stream"]]
        stream.write(data)
        # A full pipe pauses all reading from the agent.
        self._link.is_paused = True
        await stream.drain()
        self._link.is_paused = False

    def _release(self, rank: "RemoteProcess") -> None:
        """Close the sockets and pipes of a rank that is gone."""
        del self._ranks[rank.rank]
        rank.reports.close()
        for stream in rank.streams:
            stream.close()
        rank.is_over.set()

    def _lose(self, rank: "RemoteProcess", reason: str) -> None:
        """Report a rank as lost."""
        line = f"tfdist run: {self._name} is lost to this run: {reason}\n"
        rank.streams[1].write(line.encode())
        rank.report(EXIT_CODE_OF_LOST_HOST, time.monotonic())
        self._release(rank)


class RemoteProcess(RankProcess):
    """A rank on another host."""

    def __init__(
        self, host: RemoteHost, spec: ProcessSpec, *, stdout: int, stderr: int
    ) -> None:
        control, self.reports = socket.socketpair()
        super().__init__(spec, control)
        self.streams: list[asyncio.StreamWriter] = []
        self.is_over = threading.Event()
        self.has_reported = False
        self._host = host
        host.call(host.start(self, os.dup(stdout), os.dup(stderr)))

    def report(self, code: int, seconds: float) -> None:
        """Write the line that a guardian writes, once."""
        if self.has_reported:
            return
        self.has_reported = True
        line = b"%d %d\n" % (code, int(seconds * 1e9))
        with contextlib.suppress(OSError):
            self.reports.sendall(line)

    def send(self, number: signal.Signals) -> None:
        """Send a signal at once, since this process itself may be stopped next."""
        # The agent asks rank 0 for stacks at SIGUSR2.
        self.is_to_be_killed |= number == signal.SIGKILL
        self._host.call(self._host.signal(self, number))

    def kill_guardian(self) -> None:
        """Cut the connection to the host, whose agent then kills everything."""
        self.is_to_be_killed = True
        self._host.call(self._host.cut())

    def hang_up(self) -> None:
        """Have the agent kill what is left of the rank."""
        super().hang_up()
        self.send(signal.SIGKILL)

    def wait(self) -> None:
        """Wait until the agent reports that nothing is left, or the host is lost."""
        self.is_over.wait()
