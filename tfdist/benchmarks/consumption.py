"""What processes have taken so far: time of processors, and bytes on the wire."""

import re
import shutil
import subprocess
import time
from collections.abc import Collection, Iterable

# Of every TCP connection of this machine, with its counters, on a line of its own.
_LIST = ("ss", "--tcp", "--info", "--numeric", "--no-header", "--oneline")
_PORT = re.compile(r"\S:(\d+)\s")
_SENT = re.compile(r"\bbytes_sent:(\d+)")


def processor_seconds(pids: Iterable[int]) -> float:
    """Return the time that processes have had processors, all their threads included.

    Args:
        pids: The ids of processes of this machine.

    Example:
        >>> import os
        >>> processor_seconds([os.getpid()]) > 0
        True
    """
    # As clock_getcpuclockid(3) numbers the clocks; /proc counts hundredths of seconds.
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


def sent_bytes(ports: Collection[int]) -> int | None:
    """Return what has been sent over the connections of processes, both ways.

    The kernel counts it for every connection, and `ss` of iproute2 shows it. Headers of
    TCP and IP do not count; those of gRPC do.

    Args:
        ports: Where the processes listen.

    Returns:
        The bytes; None where there is no `ss`.
    """
    if shutil.which(_LIST[0]) is None:
        return None
    shown = subprocess.run(_LIST, capture_output=True, text=True, check=True)
    return count_sent_bytes(shown.stdout, ports)


def count_sent_bytes(listing: str, ports: Collection[int]) -> int:
    """Add up what connections have sent.

    Args:
        listing: A line for each end of a connection, as `ss` writes them.
        ports: Of the connections that count, at one end or the other.

    Example:
        >>> count_sent_bytes("ESTAB 0 0 127.0.0.1:80 127.0.0.1:9 bytes_sent:7", [80])
        7
    """
    total = 0
    for line in listing.splitlines():
        ends = {int(port) for port in _PORT.findall(line)[:2]}
        sent = _SENT.search(line)
        if sent is not None and not ends.isdisjoint(ports):
            total += int(sent[1])
    return total
