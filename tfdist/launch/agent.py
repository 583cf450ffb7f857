"""The launcher's agent on another host: starts ranks there, and ends with the launcher.

It is started as `python -m tfdist.launch.agent`, through ssh, and hears over its input
what to do; each rank has a guardian there as it has beside the launcher. When the
connection ends, or nothing has come over it for a while, the agent ends, and with it
all that it has started.

Messages to it, of which each has a `kind`:

| kind | with | |
|---|---|---|
| prepare | ports | pick so many free ports; the answer is `ready` |
| clock | | the answer is `clock`, with the time here |
| environment | variables | what every rank has in its environment |
| start | rank, argv, env, cores | start a rank |
| signal | rank, number | send it a signal |
| hang_up | rank | end whatever is left of it, at once |
| beat | | the launcher is there |

From it come `hello`, with the versions that are installed, before anything else; then
`output` with the bytes of a rank, `exit` when it has ended, `gone` when nothing is left
of it; and beats.
"""

import base64
import functools
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable

from tfdist.launch.cores import available_cores
from tfdist.launch.job import RESERVED_VARIABLES
from tfdist.launch.link import GREETING, Link
from tfdist.launch.ports import free_ports
from tfdist.launch.process import GuardedProcess
from tfdist.launch.spec import ProcessSpec
from tfdist.launch.versions import installed_versions
from tfdist.rendezvous.wire import Message

_CHUNK_BYTES = 65_536


class Agent:
    """Does on its host what the launcher asks for.

    Args:
        link: The connection to the launcher.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._processes: dict[int, GuardedProcess] = {}
        # Which streams of a rank are still open, by file descriptor.
        self._streams: dict[int, tuple[int, int]] = {}
        self._hears_output = True
        # Nothing is to be ended yet if the launcher is silent: it may wait for others.
        self._is_paused = True
        self._selector = selectors.DefaultSelector()
        self._selector.register(link.reading, selectors.EVENT_READ, self._hear)
        self._actions: dict[str, Callable[[Message], None]] = {
            "prepare": self._prepare,
            "clock": self._tell_time,
            "environment": self._set_environment,
            "start": self._start,
            "signal": self._signal,
            "hang_up": self._hang_up,
            "beat": lambda message: None,
        }

    def run(self) -> None:
        """Do what is asked for until the connection ends, then end what is left."""
        try:
            while self._is_paused or not self._link.is_silent:
                for key, _ in self._selector.select(self._link.beat()):
                    # What came before in this round may have done away with it.
                    if self._selector.get_map().get(key.fd) is key:
                        key.data()
                self._wait_for_room()
        except ConnectionError:
            # The launcher is gone.
            pass
        finally:
            for process in self._processes.values():
                process.hang_up()
            for process in self._processes.values():
                process.wait()

    def _hear(self) -> None:
        """Do what the launcher has asked for."""
        for message in self._link.receive():
            self._actions[message["kind"]](message)

    def _wait_for_room(self) -> None:
        """Listen to the ranks only as far as the launcher listens to us."""
        selector, link = self._selector, self._link
        if link.is_waiting and link.writing not in selector.get_map():
            selector.register(link.writing, selectors.EVENT_WRITE, link.flush)
        elif not link.is_waiting and link.writing in selector.get_map():
            selector.unregister(link.writing)
        if self._hears_output == link.is_full:
            self._hears_output = not link.is_full
            for descriptor in self._streams:
                if self._hears_output:
                    self._listen_to(descriptor)
                else:
                    selector.unregister(descriptor)

    def _prepare(self, message: Message) -> None:
        """Say which ports and cores are here for ranks."""
        try:
            ports = free_ports(message["ports"], host="")
            cores = available_cores()
        except OSError as error:
            self._link.send({"kind": "refused", "text": str(error)})
        else:
            self._link.send({"kind": "ready", "ports": ports, "cores": cores})

    def _tell_time(self, message: Message) -> None:
        """Say what the clock says, with which the ends of ranks are dated."""
        self._link.send({"kind": "clock", "now": time.monotonic()})

    def _set_environment(self, message: Message) -> None:
        """Take over the launcher's variables; ours stay where it has none."""
        os.environ.update(message["variables"])

    def _start(self, message: Message) -> None:
        """Start a rank, or the next one in its place."""
        rank = message["rank"]
        self._wait_anew(is_paused=False)
        spec = ProcessSpec(
            rank,
            tuple(message["argv"]),
            message["env"],
            tuple(message["cores"]),
            RESERVED_VARIABLES,
        )
        pipes = [os.pipe() for _ in range(2)]
        (_, stdout), (_, stderr) = pipes
        process = GuardedProcess(spec, stdout=stdout, stderr=stderr)
        self._processes[rank] = process
        listen = functools.partial(self._listen, process)
        self._selector.register(process, selectors.EVENT_READ, listen)
        for stream, (read_end, write_end) in enumerate(pipes, start=1):
            os.close(write_end)
            self._streams[read_end] = rank, stream
            if self._hears_output:
                self._listen_to(read_end)

    def _signal(self, message: Message) -> None:
        """Send a signal to a rank; while they are stopped, so may be the launcher."""
        number = signal.Signals(message["number"])
        if number in (signal.SIGSTOP, signal.SIGCONT):
            self._wait_anew(is_paused=number == signal.SIGSTOP)
        self._processes[message["rank"]].send(number)

    def _wait_anew(self, *, is_paused: bool) -> None:
        """Take silence for the end of the launcher, or not, from now on."""
        self._is_paused = is_paused
        self._link.listen_anew()

    def _hang_up(self, message: Message) -> None:
        """End at once what is left of a rank."""
        process = self._processes[message["rank"]]
        if not process.is_gone:
            self._selector.unregister(process)
            process.hang_up()
            process.wait()
            process.is_gone = True
            self._tell_if_gone(process.rank)

    def _listen_to(self, descriptor: int) -> None:
        """Listen to a stream of a rank."""
        move = functools.partial(self._move, descriptor)
        self._selector.register(descriptor, selectors.EVENT_READ, move)

    def _move(self, descriptor: int) -> None:
        """Pass on what one stream of a rank holds now."""
        rank, stream = self._streams[descriptor]
        data = os.read(descriptor, _CHUNK_BYTES)
        if data:
            text = base64.b64encode(data).decode()
            self._link.send(
                {"kind": "output", "rank": rank, "stream": stream, "data": text}
            )
            return
        self._selector.unregister(descriptor)
        os.close(descriptor)
        del self._streams[descriptor]
        self._tell_if_gone(rank)

    def _listen(self, process: GuardedProcess) -> None:
        """Pass on how a rank has ended, and that nothing is left of it."""
        has_ended_before = process.exit_code is not None
        process.receive()
        if not has_ended_before:
            self._link.send(
                {
                    "kind": "exit",
                    "rank": process.rank,
                    "code": process.exit_code,
                    "at": process.ended_seconds,
                }
            )
        if process.is_gone:
            self._selector.unregister(process)
            process.hang_up()
            process.wait()
            self._tell_if_gone(process.rank)

    def _tell_if_gone(self, rank: int) -> None:
        """Say that nothing is left of a rank, after the last that it has printed."""
        is_heard = any(its == rank for its, _ in self._streams.values())
        if self._processes[rank].is_gone and not is_heard:
            self._link.send({"kind": "gone", "rank": rank})


def main() -> None:
    """Serve the launcher at the other end of stdin and stdout."""
    reading, writing = os.dup(0), os.dup(1)
    # Whatever else is printed here is not part of the conversation.
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.write(writing, b"\n" + GREETING)
    link = Link(reading, writing)
    link.send({"kind": "hello", "versions": installed_versions()})
    Agent(link).run()
    # Without it Python would wait for threads that may be stuck with a lost launcher.
    sys.stderr.flush()


if __name__ == "__main__":
    main()
