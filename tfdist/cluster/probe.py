"""The probe: which tasks of a cluster reach which others, before a job starts."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tfdist.cluster.address import split_address
from tfdist.cluster.model import Cluster, Task
from tfdist.cluster.probe_door import GRACE_SECONDS, ProbeDoor, Row, jobs_of
from tfdist.cluster.reach import ANSWERS, REACHABLE, TIMED_OUT, Reach, dial
from tfdist.cluster.wire import Message, Reader, receive, send

TIMEOUT_SECONDS = 30.0
_RETRY_SECONDS = 0.2
# How long one try may take; packets that are dropped are sent again after 1 and 3 s.
_TRY_SECONDS = 5.0
_SHORTEST_TRY_SECONDS = 0.5


@dataclass(frozen=True)
class ReachMatrix:
    """Who reaches whom, as far as this process knows.

    Args:
        cluster: Who is in the job.
        rows: What each task has seen of each other one, both as text: all rows at the
            collector, this task's own at the others.
        collector: The task at whose address the rows are gathered.
        ended: Whether all tasks reach each other, as the collector has told; None at
            the collector itself, and where it could not be asked.
        doubles: The tasks that several processes take themselves for.
    """

    cluster: Cluster
    rows: dict[str, Row]
    collector: Task
    ended: bool | None = None
    doubles: frozenset[str] = field(default_factory=frozenset)

    @property
    def all_reach(self) -> bool:
        """Whether every task reaches every other one."""
        if self.ended is not None:
            return self.ended
        pairs = [
            (one, other)
            for one in addresses_by_task(self.cluster)
            for other in addresses_by_task(self.cluster)
            if one != other
        ]
        return not self.doubles and all(
            one in self.rows
            and self.rows[one].get(other, Reach("")).outcome == REACHABLE
            for one, other in pairs
        )


@contextmanager
def probe(
    cluster: Cluster, *, timeout_seconds: float = TIMEOUT_SECONDS
) -> Iterator[ReachMatrix]:
    """Find out together with the other tasks who reaches whom.

    Every task listens at its own address and calls all others, until each has answered
    or the time is over. The rows go to the first of those that train. The other tasks
    are let go when the collector's block ends, so that none of them ends the job before
    the collector has told what it knows.

    Args:
        cluster: Who is in the job; this process must have an address.
        timeout_seconds: How long to try, from the start of this process. Default 30.

    Yields:
        What this process knows in the end.

    Raises:
        OSError: If this process cannot listen at its own address.
    """
    deadline = time.monotonic() + timeout_seconds
    me, collector = str(cluster.task), cluster.task_of(0)
    host = socket.gethostname()
    caller = {
        "task": me,
        "jobs": jobs_of(cluster),
        "owner": f"process {os.getpid()} on {host}",
    }
    door = ProbeDoor(cluster, host)
    matrix = ReachMatrix(cluster, {}, collector)
    try:
        row = _call_all(cluster, {"kind": "probe", **caller}, deadline)
        if cluster.task != collector:
            message = {"kind": "row", **caller, "doubles": [*door.doubles]}
            ended = _hand_in(cluster, message, row, timeout_seconds)
            matrix = ReachMatrix(cluster, {me: row}, collector, ended)
        else:
            tasks = [*addresses_by_task(cluster)]
            door.wait_for_rows((task for task in tasks if task != me), deadline)
            given = {**door.rows, me: row}
            rows = {task: given[task] for task in tasks if task in given}
            doubles = frozenset(door.doubles)
            matrix = ReachMatrix(cluster, rows, collector, doubles=doubles)
        yield matrix
    finally:
        door.close(all_reach=matrix.all_reach)


def addresses_by_task(cluster: Cluster) -> dict[str, str]:
    """Return the address of each task, as text.

    Args:
        cluster: The cluster.

    Example:
        >>> addresses_by_task(Cluster(workers=("a:1",), ps=("b:1",)))
        {'worker 0': 'a:1', 'ps 0': 'b:1'}
    """
    return {
        f"{job} {index}": address
        for job, addresses in cluster.jobs.items()
        for index, address in enumerate(addresses)
    }


def _call_all(cluster: Cluster, hello: Message, deadline: float) -> Row:
    """Call every other task until it answers or the time is over."""
    others = addresses_by_task(cluster)
    del others[str(cluster.task)]
    row: Row = {}

    def call(task: str, address: str) -> None:
        while True:
            left = deadline - time.monotonic()
            seconds = max(_SHORTEST_TRY_SECONDS, min(_TRY_SECONDS, left))
            message = {**hello, "seconds_left": max(0.0, left)}
            reach = dial(address, message, task, timeout_seconds=seconds)
            if _tells_more(reach, row.get(task), seconds):
                row[task] = reach
            if reach.outcome == REACHABLE or time.monotonic() >= deadline:
                return
            time.sleep(_RETRY_SECONDS)

    # Ended with the process: nothing limits how long the look-up of a name may take.
    threads = [
        threading.Thread(target=call, args=item, daemon=True) for item in others.items()
    ]
    for thread in threads:
        thread.start()
    end = deadline + 3 * _SHORTEST_TRY_SECONDS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    seen = dict(row)
    late = Reach(TIMED_OUT, "the name server has not answered")
    return {task: seen.get(task, late) for task in others}


def _tells_more(reach: Reach, before: Reach | None, seconds: float) -> bool:
    """Say whether what has come of a try outweighs what was seen before."""
    if before is None or reach.outcome in ANSWERS:
        return True
    # Who has answered was there, also if it has ended before this process; and a try
    # that the deadline cuts short says little.
    is_cut = seconds < _TRY_SECONDS and reach.outcome == TIMED_OUT
    return before.outcome not in ANSWERS and not is_cut


def _hand_in(
    cluster: Cluster, message: Message, row: Row, timeout_seconds: float
) -> bool | None:
    """Give a row to the collector, and wait until it says how it came out."""
    collector = cluster.task_of(0)
    if row[str(collector)].outcome != REACHABLE:
        return None
    cells = {task: [reach.outcome, reach.detail] for task, reach in row.items()}
    try:
        address = split_address(cluster.addresses[0])
        with socket.create_connection(address, timeout=_TRY_SECONDS) as connection:
            send(connection, {**message, "row": cells})
            # It waits for tasks that were started later than this one.
            connection.settimeout(2 * timeout_seconds + 2 * GRACE_SECONDS)
            ended = receive(connection, Reader())["all_reach"]
    except (OSError, ValueError, LookupError):
        return None
    return ended is True
