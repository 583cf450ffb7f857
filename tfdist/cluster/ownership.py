"""Ownership of a rank: one process has it, and none of its descendants again."""

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator

from tfdist.cluster.this_host import parent_of

# The process that has taken the rank of its environment, its session, and that rank.
OWNER_VARIABLE = "TFDIST_RANK_OWNER"
# A program may save its state at SIGTERM.
_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.05


def take_rank(rank: int, size: int) -> None:
    """Take a rank of several; where the process has it from another, end the job."""
    place = f"rank {rank} of {size}"
    owner, session, taken = _read(os.environ.get(OWNER_VARIABLE, ""))
    # A job that a rank submits may inherit the variable, but not the session.
    is_of_owner = os.getsid(0) == session or owner in _ancestors()
    if taken == place and owner != os.getpid() and is_of_owner:
        # One of the processes of a pool speaks for all.
        with socket.socket(socket.AF_UNIX) as claim, contextlib.suppress(OSError):
            claim.bind(f"\0tfdist.owner.{owner}")
            _end_job(rank, place, owner)
        raise SystemExit(1)
    if size > 1:
        os.environ[OWNER_VARIABLE] = f"{os.getpid()} {os.getsid(0)} {place}"


def _read(text: str) -> tuple[int, int, str]:
    """Return owner, session and place; zeros and nothing if the text is another."""
    owner, _, rest = text.partition(" ")
    session, _, place = rest.partition(" ")
    if not (owner.isdecimal() and session.isdecimal()):
        return 0, 0, ""
    return int(owner), int(session), place


def _ancestors() -> Iterator[int]:
    """Yield the parent of this process, its parent, and so on."""
    process_id: int | None = os.getppid()
    while process_id:
        yield process_id
        process_id = parent_of(process_id)


def _end_job(rank: int, place: str, owner: int) -> None:
    """Print the error, then end the owner, whose pool would start other processes."""
    print(
        f"tfdist: A process that rank {rank} has started makes the strategy again, as "
        "multiprocessing imports the program once more in its processes. Received: "
        f"{place} in process {os.getpid()}, which process {owner} has already; the job "
        "ends. Move the strategy, and what follows it, under "
        "`if __name__ == '__main__':`.",
        file=sys.stderr,
        flush=True,
    )
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _GRACE_SECONDS
        # Once it has ended, another process may have its number.
        if owner in _ancestors():
            os.kill(owner, number)
        while owner in _ancestors() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
