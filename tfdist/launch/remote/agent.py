"""The launcher's agent on another host, which starts ranks and exits with it."""

import base64
import functools
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable

from tfdist.launch.job import RESERVED_VARIABLES, ProcessSpec
from tfdist.launch.machine import available_cores, free_ports, installed_versions
from tfdist.launch.process import GuardedProcess
from tfdist.launch.remote.link import GREETING, Link
from tfdist.rendezvous.wire import Message

_CHUNK_BYTES = 65_536


class Agent:
    """Server of the launcher's requests on this host."""

    # Started as `python -m tfdist.launch.remote.agent`. It sends `hello` with the
    # installed versions, then answers, heartbeats, and the `output`, `exit` and `gone`
    # of ranks; `gone` means that no descendant is left.
    def __init__(self, link: Link) -> None:
        self._link = link
        self._processes: dict[int, GuardedProcess] = {}
        # The rank and the stream of each open file descriptor.
        self._streams: dict[int, tuple[int, int]] = {}
        self._reads_output = True
        # Before the first start the launcher may be silent, waiting for other hosts.
        self._is_paused = True
        self._selector = selectors.DefaultSelector()
        self._selector.register(link.reading, selectors.EVENT_READ, self._receive)
        self._actions: dict[str, Callable[[Message], None]] = {
            "prepare": self._prepare,
            "clock": lambda _: link.send({"kind": "clock", "now": time.monotonic()}),
            "environment": lambda message: os.environ.update(message["variables"]),
            "start": self._start,
            "signal": self._signal,
            "hang_up": self._hang_up,
            "beat": lambda message: None,
        }

    def run(self) -> None:
        """Serve requests until the connection ends, then kill the remaining ranks."""
        try:
            while self._is_paused or not self._link.is_silent:
                self._link.run_once(self._selector)
                self._throttle()
        except ConnectionError:
            # The launcher is gone.
            pass
        finally:
            for process in self._processes.values():
                process.hang_up()
            for process in self._processes.values():
                process.wait()

    def _receive(self) -> None:
        """Carry out the requests received."""
        for message in self._link.receive():
            self._actions[message["kind"]](message)

    def _throttle(self) -> None:
        """Throttle the ranks' output to the speed at which the launcher reads it."""
        if self._reads_output == self._link.is_full:
            self._reads_output = not self._link.is_full
            for descriptor in self._streams:
                if self._reads_output:
                    self._read_from(descriptor)
                else:
                    self._selector.unregister(descriptor)

    def _prepare(self, message: Message) -> None:
        """Send free ports and available cores."""
        try:
            ports = free_ports(message["ports"], host="")
            cores = available_cores()
        except OSError as error:
            self._link.send({"kind": "refused", "text": str(error)})
        else:
            self._link.send({"kind": "ready", "ports": ports, "cores": cores})

    def _start(self, message: Message) -> None:
        """Start a rank, or its replacement."""
        rank = message["rank"]
        self._watch_launcher(is_paused=False)
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
        report = functools.partial(self._report, process)
        self._selector.register(process, selectors.EVENT_READ, report)
        for stream, (read_end, write_end) in enumerate(pipes, start=1):
            os.close(write_end)
            self._streams[read_end] = rank, stream
            if self._reads_output:
                self._read_from(read_end)

    def _signal(self, message: Message) -> None:
        """Forward a signal to a rank."""
        number = signal.Signals(message["number"])
        # The launcher, too, may be stopped while its ranks are.
        if number in (signal.SIGSTOP, signal.SIGCONT):
            self._watch_launcher(is_paused=number == signal.SIGSTOP)
        self._processes[message["rank"]].send(number)

    def _watch_launcher(self, *, is_paused: bool) -> None:
        """Set whether silence from now on means that the launcher is gone."""
        self._is_paused = is_paused
        self._link.restart_silence()

    def _hang_up(self, message: Message) -> None:
        """Kill what is left of a rank."""
        process = self._processes[message["rank"]]
        if not process.is_gone:
            process.is_gone = True
            self._release(process)

    def _release(self, process: GuardedProcess) -> None:
        """Close the connection to a guardian, and wait for it to exit."""
        self._selector.unregister(process)
        process.hang_up()
        process.wait()
        self._send_if_gone(process.rank)

    def _read_from(self, descriptor: int) -> None:
        """Register a stream of a rank."""
        forward = functools.partial(self._forward, descriptor)
        self._selector.register(descriptor, selectors.EVENT_READ, forward)

    def _forward(self, descriptor: int) -> None:
        """Send the bytes that one stream of a rank has ready."""
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
        self._send_if_gone(rank)

    def _report(self, process: GuardedProcess) -> None:
        """Send the exit code of a rank, then the end of its descendants."""
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
            self._release(process)

    def _send_if_gone(self, rank: int) -> None:
        """Send `gone` once no descendant of a rank and no output is left."""
        has_output = any(its == rank for its, _ in self._streams.values())
        if self._processes[rank].is_gone and not has_output:
            self._link.send({"kind": "gone", "rank": rank})


def main() -> None:
    """Serve the launcher over stdin and stdout."""
    reading, writing = os.dup(0), os.dup(1)
    # Keep other prints out of the message stream.
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.write(writing, b"\n" + GREETING)
    link = Link(reading, writing)
    link.send({"kind": "hello", "versions": installed_versions()})
    Agent(link).run()
    sys.stderr.flush()


if __name__ == "__main__":
    main()
