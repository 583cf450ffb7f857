"""Watchdog of a process: a child that kills the process if it hangs."""

import os
import select
import signal
import subprocess
import sys
import threading

# Peers wait for a hung process as if it were slow, but notice at once if it ends. The
# watchdog is started by path, as `python -I -S watchdog.py PARENT TICKS NAME`, to run
# within milliseconds and import nothing of tfdist. Each byte on its standard input is a
# heartbeat; end of file means that the parent is gone. It counts only ticks in which it
# could run itself, so it spares a machine, container or job that is stopped as a whole.
TICK_SECONDS = 1.0
# Other work on the machine may starve a process for long.
SILENCE_SECONDS = 30.0
# The parent handles these signals; the watchdog ends with it.
_FOR_PARENT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def start_watchdog(name: str, silence_seconds: float) -> None:
    """Start the watchdog, which kills this process if its Python stalls."""
    ticks = max(1, round(silence_seconds / TICK_SECONDS))
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(ticks), name]
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


def watch(parent: int, ticks: int, name: str) -> None:
    """Wait until the parent ends, or kill it after `ticks` silent ticks."""
    silent = 0
    while silent < ticks:
        ready, _, _ = select.select([0], [], [], TICK_SECONDS)
        if ready and not os.read(0, 4096):
            return
        silent = 0 if ready or _is_traced(parent) else silent + 1
    # While it is still our parent, no other process can have its ID.
    if os.getppid() == parent:
        message = (
            f"tfdist: {name} has not run for {ticks * TICK_SECONDS:.0f} s, as if it "
            "were stopped. It is killed, so that its peers need not wait for it.\n"
        )
        os.write(2, message.encode())
        os.kill(parent, signal.SIGKILL)


def _is_traced(process: int) -> bool:
    """Return whether a debugger holds a process."""
    try:
        with open(f"/proc/{process}/status") as file:
            lines = [line.split() for line in file if line.startswith("TracerPid:")]
    except OSError:
        return False
    return any(line[1] != "0" for line in lines)


if __name__ == "__main__":
    watch(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
