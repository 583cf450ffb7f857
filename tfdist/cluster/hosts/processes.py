"""The processes of this host, as Linux lists them."""

import contextlib
import os

# The fields of /proc/PID/stat after the name.
_STATE, _PARENT, _SESSION = 0, 1, 3
_DEAD = (b"Z", b"X")


def parent_of(process_id: int) -> int | None:
    """Return the parent of a process, None if it is gone or the system does not say."""
    fields = _fields(process_id)
    return int(fields[_PARENT]) if fields else None


def members_of(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    numbers = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]
    found = ((number, _fields(number)) for number in numbers)
    return [
        number
        for number, fields in found
        if fields and int(fields[_SESSION]) == session and fields[_STATE] not in _DEAD
    ]


def _fields(process_id: int) -> list[bytes]:
    """Return what Linux says of a process after its name, nothing if it is gone."""
    with (
        contextlib.suppress(OSError),
        open(f"/proc/{process_id}/stat", "rb") as file,
    ):
        # The name may itself contain spaces and parentheses.
        return file.read().rpartition(b")")[2].split()
    return []
