"""Watchdog of a process: a child that kills the process if it hangs or is stopped."""

import os
import select
import signal
import subprocess
import sys
import threading

# Peers wait for a hung process as if it were slow, but notice at once if it ends. The
# watchdog is started by path, as `python -I -S watchdog.py PARENT TICKS WHAT NAME`, to
# run within milliseconds and import nothing of tfdist. Each byte on its standard input
# is a heartbeat; end of file means that the parent is gone. It counts only ticks in
# which it could run itself, so it spares a machine, container or job that is stopped as
# a whole.
TICK_SECONDS = 1.0
# Other work on the machine may starve a process for long.
SILENCE_SECONDS = 30.0
# A process that a signal has stopped cannot be mistaken for a slow one.
STOPPED_SECONDS = 15.0
# Set where signals stop this process on purpose, as between the turns of a benchmark.
stops_are_expected = threading.Event()
# The parent handles these signals; the watchdog ends with it.
_FOR_PARENT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def start_watchdog(name: str, seconds: float, *, if_stopped: bool = False) -> None:
    """Start the watchdog, which kills this process if its Python stalls.

    With `if_stopped` it spares a process that no signal has stopped, and is not needed
    where `stops_are_expected`.
    """
    if if_stopped and stops_are_expected.is_set():
        return
    ticks = max(1, round(seconds / TICK_SECONDS))
    orders = [str(os.getpid()), str(ticks), "stopped" if if_stopped else "silent", name]
    command = [sys.executable, "-I", "-S", __file__, *orders]
    # The watchdog inherits the mask, so that an early Ctrl-C does not end it.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_PARENT)
    try:
        dog = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    threading.Thread(
        target=_beat, args=(dog,), name="tfdist watchdog", daemon=True
    ).start()


def _beat(dog: "subprocess.Popen[bytes]") -> None:
    """Send heartbeats until the watchdog is gone."""
    assert dog.stdin is not None
    while dog.poll() is None:
        try:
            dog.stdin.write(b".")
        except BrokenPipeError:
            return
        threading.Event().wait(TICK_SECONDS / 2)


def watch(parent: int, ticks: int, what: str, name: str) -> None:
    """Wait until the parent ends, or kill it after `ticks` ticks of silence."""
    silent = 0
    while silent < ticks and os.getppid() == parent:
        ready, _, _ = select.select([0], [], [], TICK_SECONDS)
        if ready and not os.read(0, 4096):
            return
        silent = silent + 1 if not ready and has_stalled(parent, what) else 0
    # While it is still our parent, no other process can have its ID.
    if os.getppid() == parent:
        message = (
            f"tfdist: {name} has not run for {ticks * TICK_SECONDS:.0f} s, as if it "
            "were stopped. It is killed, so that its peers need not wait for it.\n"
        )
        os.write(2, message.encode())
        os.kill(parent, signal.SIGKILL)


def has_stalled(process: int, what: str) -> bool:
    """Return whether a silent process counts: not if a debugger holds it."""
    try:
        with open(f"/proc/{process}/status") as file:
            fields = (line.partition(":") for line in file)
            status = {name: value.strip() for name, _, value in fields}
    except OSError:
        return what == "silent"
    is_stopped = status["State"].startswith("T")
    return status["TracerPid"] == "0" and (is_stopped or what == "silent")


if __name__ == "__main__":
    watch(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
