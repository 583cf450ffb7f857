"""Guardian of one rank: relays signals, reports its exit and kills its descendants."""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

# Blocked in the guardian, which receives signals over CONTROL.
_BLOCKED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
)
# Python ignores these, and its child processes would inherit that.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

# <linux/prctl.h>
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

# Grace period for processes that outlive the rank.
_LINGER_SECONDS = 1.0


# The launcher starts this file by path. It imports little, to start in milliseconds:
#     python -I -S guardian.py CONTROL LENGTH CORES
# CONTROL is the file descriptor of a socket, CORES a comma-separated list. The guardian
# reads LENGTH bytes from CONTROL: the rank's command line, separated by zero bytes. It
# is not in argv, where `pkill -f train.py` would match the guardian. Each further byte
# is a signal for the rank's process group. End of file, as when the launcher is killed,
# kills everything. When the rank exits, the guardian writes its exit code (or minus the
# signal) and the time to CONTROL.
#
# It kills direct children only: their process ids cannot be reused before it reaps
# them. As a subreaper it adopts every orphan, daemons included. If the guardian itself
# is killed, the kernel kills the rank, and the launcher what is left of the guardian's
# session, to which the rank belongs.
class Guardian:
    """Parent of a rank: relays signals, reports the exit and kills descendants."""

    def __init__(self, control: int, command: list[bytes], cores: list[int]) -> None:
        self._control = control
        os.set_inheritable(control, False)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._child_events = _wake_up_pipe()
        self._leader = _start(command, cores)
        # Release the rank's output pipes; our own stdin is /dev/null.
        os.dup2(0, 1)
        os.dup2(0, 2)

    def watch(self) -> None:
        """Wait until the rank and all its descendants are gone."""
        if self._wait_for_rank():
            self._report()
            self._linger()
            os.killpg(self._leader, signal.SIGKILL)
        else:
            os.killpg(self._leader, signal.SIGKILL)
            self._report()
        self._end_children()

    def _wait_for_rank(self) -> bool:
        """Relay signals until the rank exits; return False if it must be killed."""
        while not self._rank_has_ended():
            if not self._pass_signals_on(None):
                return False
        return True

    def _pass_signals_on(self, seconds: float | None) -> bool:
        """Wait for events; return False if everything must be killed now."""
        # Not `select`, which takes no descriptors above 1023.
        poll = select.poll()
        for source in (self._control, self._child_events):
            poll.register(source, select.POLLIN)
        timeout = None if seconds is None else 1e3 * seconds
        ready = {descriptor for descriptor, _ in poll.poll(timeout)}
        if self._child_events in ready:
            os.read(self._child_events, 4096)
        if self._control not in ready:
            return True
        numbers = b""
        # A launcher that dies before it reads our report resets the connection.
        with contextlib.suppress(ConnectionResetError):
            numbers = os.read(self._control, 64)
        for number in numbers:
            os.killpg(self._leader, number)
        return bool(numbers) and signal.SIGKILL not in numbers

    def _rank_has_ended(self) -> bool:
        """Reap orphans, but not the rank, whose process id must not be reused."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while (ended := os.waitid(os.P_ALL, 0, flags)) is not None:
            if ended.si_pid == self._leader:
                return True
            os.waitpid(ended.si_pid, 0)
        return False

    def _report(self) -> None:
        """Report the rank's exit to the launcher."""
        ended = os.waitid(os.P_PID, self._leader, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        was_killed = ended.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
        code = -ended.si_status if was_killed else ended.si_status
        report = b"%d %d\n" % (code, time.monotonic_ns())
        # The launcher may be gone.
        with contextlib.suppress(OSError):
            os.write(self._control, report)

    def _linger(self) -> None:
        """Give processes that outlive the rank time to exit."""
        deadline = time.monotonic() + _LINGER_SECONDS
        while self._has_orphans():
            seconds = deadline - time.monotonic()
            if seconds <= 0 or not self._pass_signals_on(seconds):
                return

    def _has_orphans(self) -> bool:
        """Reap orphans that have exited; return whether any are left."""
        orphans = _children_of(os.getpid()) - {self._leader}
        return any([os.waitpid(orphan, os.WNOHANG) == (0, 0) for orphan in orphans])

    def _end_children(self) -> None:
        """Kill children, and the orphans that each leaves, until none are left."""
        with contextlib.suppress(ChildProcessError):
            while True:
                for child in _children_of(os.getpid()):
                    os.kill(child, signal.SIGKILL)
                os.waitpid(-1, 0)


def main(arguments: list[str]) -> None:
    """Guard the rank that CONTROL, LENGTH and CORES describe."""
    control, length, cores = arguments
    command = _read(int(control), int(length)).split(b"\0")
    pins = [int(core) for core in cores.split(",") if core]
    Guardian(int(control), command, pins).watch()


def _read(descriptor: int, length: int) -> bytes:
    """Read `length` bytes; exit if the launcher is gone."""
    data = b""
    while len(data) < length:
        data += os.read(descriptor, length - len(data)) or sys.exit()
    return data


def _start(command: list[bytes], cores: list[int]) -> int:
    """Start the rank in its own process group; return once its program runs."""
    guardian = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    # Closed by exec, or by the child's exit.
    wait, ready = os.pipe()
    child = os.fork()
    if child == 0:
        _become_rank(command, cores, guardian, mask)
    os.close(ready)
    os.read(wait, 1)
    os.close(wait)
    return child


def _become_rank(
    command: list[bytes],
    cores: list[int],
    guardian: int,
    mask: set[int | signal.Signals],
) -> None:
    """Replace the forked child by the rank's program; never return."""
    try:
        os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guardian:
            return
        for number in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if cores:
            os.sched_setaffinity(0, cores)
        os.execv(command[0], command)
    except OSError as error:
        os.write(2, b"tfdist run: cannot start %s: " % command[0])
        os.write(2, f"{error.strerror}\n".encode())
    finally:
        os._exit(127)


def _wake_up_pipe() -> int:
    """Return a file descriptor that becomes readable when a child exits."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    return read_end


def _children_of(parent: int) -> set[int]:
    """Return the process ids of all direct children, including zombies."""
    children = set()
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        # A process may exit meanwhile.
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
            # The process name may itself contain spaces and parentheses.
            if int(file.read().rpartition(b")")[2].split()[1]) == parent:
                children.add(int(entry))
    return children


def _prctl(option: int, value: int) -> None:
    """Call prctl(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value)) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    main(sys.argv[1:])
