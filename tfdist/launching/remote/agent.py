"""The launcher's agent on another host, which starts ranks and exits with it."""

import asyncio
import base64
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from tfdist.cluster.launcher import PROGRESS_VARIABLE, ask_for_stacks, read_notes
from tfdist.cluster.this_host import VISIBLE_VARIABLE, core_quota, cores_of_gpus
from tfdist.launching.events import PASSED_ON
from tfdist.launching.job import RESERVED_VARIABLES, ProcessSpec
from tfdist.launching.machine import (
    available_cores,
    free_ports,
    held_folder,
    installed_versions,
)
from tfdist.launching.process import GuardedProcess
from tfdist.launching.remote.messages import (
    CHUNK_BYTES,
    GREETING,
    AgentLink,
    open_link,
    open_reader,
)
from tfdist.rendezvous.wire import Message

# Interval at which the notes of rank 0 are read, which may die with its host.
_NOTES_SECONDS = 1.0


class Agent:
    """Starts, signals and watches the ranks of this host for the launcher."""

    # `python -m tfdist.launching.remote.agent PORTS` starts it. It sends `hello` with
    # installed versions, free ports, cores and cores near GPUs, then the `output`,
    # `exit` and `gone` of ranks; `gone` means that no descendant is left. Rank 0 writes
    # files for the launcher: on another host `notes` carry what they hold.
    def __init__(self, link: AgentLink, folder: Path) -> None:
        self._link = link
        self._progress = folder / "progress"
        self._progress.touch()
        self._notes: tuple[str, int | None, bool] | None = read_notes(self._progress)
        self._processes: dict[int, GuardedProcess] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Serve requests until the connection ends, then kill the remaining ranks."""
        try:
            await self._link.receive(self._handle)
        except (ConnectionError, TimeoutError):
            # The launcher is gone.
            pass
        finally:
            for process in self._processes.values():
                process.hang_up()
            for process in self._processes.values():
                process.wait()

    async def _handle(self, message: Message) -> None:
        """Start or signal a rank."""
        if message["kind"] == "start":
            self._start(message)
            return
        number = signal.Signals(message["number"])
        if number == signal.SIGUSR2:
            ask_for_stacks(self._progress)
            # The launcher hears of an answer that comes before the next look, too.
            self._notes = None
            return
        # The launcher, too, may be stopped while its ranks are.
        if number in (signal.SIGSTOP, signal.SIGCONT):
            self._link.is_paused = number == signal.SIGSTOP
        self._processes[message["rank"]].send(number)

    def _start(self, message: Message) -> None:
        """Start a rank, or its replacement."""
        spec = ProcessSpec(
            message["rank"],
            tuple(message["argv"]),
            message["env"] | {PROGRESS_VARIABLE: str(self._progress)},
            tuple(message["cores"]),
            RESERVED_VARIABLES,
        )
        pipes = [os.pipe(), os.pipe()]
        (_, stdout), (_, stderr) = pipes
        process = GuardedProcess(spec, stdout=stdout, stderr=stderr)
        self._processes[spec.rank] = process
        os.close(stdout)
        os.close(stderr)
        ends = [read_end for read_end, _ in pipes]
        self._tasks.append(asyncio.create_task(self._watch(process, ends)))
        if spec.rank == 0:
            self._tasks.append(asyncio.create_task(self._send_all_notes()))

    async def _watch(self, process: GuardedProcess, streams: list[int]) -> None:
        """Forward the output and the exit of a rank, until nothing is left of it."""
        forwards = [
            asyncio.create_task(self._forward(process.rank, stream, descriptor))
            for stream, descriptor in enumerate(streams)
        ]
        while not process.is_gone:
            await _readable(process.fileno())
            has_ended_before = process.exit_code is not None
            process.receive()
            if not has_ended_before:
                ago = time.monotonic() - process.ended_seconds
                code = process.exit_code
                await self._send("exit", process.rank, ago=ago, code=code)
        await asyncio.gather(*forwards)
        process.hang_up()
        process.wait()
        if process.rank == 0:
            await self._send_notes()
        await self._send("gone", process.rank)

    async def _forward(self, rank: int, stream: int, descriptor: int) -> None:
        """Send the output of one stream of a rank."""
        reader, _ = await open_reader(os.fdopen(descriptor, "rb", 0))
        while data := await reader.read(CHUNK_BYTES):
            text = base64.b64encode(data).decode()
            await self._send("output", rank, stream=stream, data=text)

    async def _send_all_notes(self) -> None:
        """Send what rank 0 writes, until the connection ends."""
        while True:
            await asyncio.sleep(_NOTES_SECONDS)
            await self._send_notes()

    async def _send_notes(self) -> None:
        """Send what rank 0 has written since the last time."""
        notes = read_notes(self._progress)
        if notes != self._notes:
            self._notes = notes
            await self._send("notes", 0, notes=notes)

    async def _send(self, kind: str, rank: int, **content: object) -> None:
        """Send a message at the speed at which the launcher reads."""
        with contextlib.suppress(ConnectionError):
            self._link.send({"kind": kind, "rank": rank, **content})
            await self._link.drain()


async def _readable(descriptor: int) -> None:
    """Wait until a file descriptor is readable."""
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(descriptor)


async def _serve(reading: int, writing: int, ports: int) -> None:
    """Introduce this host to the launcher, and serve it."""
    link = await open_link(os.fdopen(reading, "rb", 0), os.fdopen(writing, "wb", 0))
    hello: Message = {"kind": "hello", "versions": installed_versions()}
    try:
        hello["ports"] = free_ports(ports, host="")
        hello["cores"] = cores = available_cores()
        hello["gpus"] = cores_of_gpus(cores)
        hello["quota"] = core_quota()
        hello["visible"] = os.environ.get(VISIBLE_VARIABLE)
    except OSError as error:
        hello["refusal"] = str(error)
    link.send(hello)
    with held_folder("tfdist-agent-") as folder:
        await Agent(link, Path(folder)).run()


def main() -> None:
    """Serve the launcher over stdin and stdout."""
    reading, writing = os.dup(0), os.dup(1)
    # Keep other prints out of the message stream.
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    # Slurm, or a host that shuts down, signals all processes there, and ranks may be
    # saving their state. Ranks inherit no handler, but would inherit SIG_IGN.
    for number in PASSED_ON:
        signal.signal(number, lambda number, frame: None)
    os.write(writing, GREETING)
    asyncio.run(_serve(reading, writing, int(sys.argv[1])))
    sys.stderr.flush()


if __name__ == "__main__":
    main()
