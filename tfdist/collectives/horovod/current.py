"""The collective over Horovod, if the program has initialized Horovod itself."""

import sys
from typing import Any

from tfdist.cluster.detect import is_elastic
from tfdist.cluster.launcher import Launcher
from tfdist.collectives.base import Collective
from tfdist.rendezvous.roll_call import TIMEOUT_SECONDS


def started_rank() -> int | None:
    """Return this process's rank, or None unless Horovod runs with several."""
    horovod = _started()
    return None if horovod is None else int(horovod.rank())


def started_collective() -> Collective | None:
    """Return Horovod's collective, or None unless Horovod runs with several processes.

    All ranks must make the first call together, because it connects them.
    """
    horovod = _started()
    if horovod is None:
        return None
    if is_elastic():
        raise RuntimeError(
            "This callback needs ranks that stay. Received: an elastic job of Horovod. "
            "Use the callbacks of tfdist.horovod there."
        )
    return collective_of(horovod.global_process_set)


def collective_of(process_set: Any) -> Collective:
    """Return the collective of a process set, whose ranks make the first call together.

    It is kept as long as the set, because connecting again would wait for all ranks.
    """
    if not hasattr(process_set, "tfdist_collective"):
        # Only programs with Horovod can import this.
        from tfdist.collectives.horovod.collective import HorovodCollective

        seconds = Launcher().stall_timeout(TIMEOUT_SECONDS)
        HorovodCollective(process_set, timeout_seconds=seconds)
    return process_set.tfdist_collective


def _started() -> Any:
    """Return Horovod, or None unless the program has initialized it with peers."""
    horovod = sys.modules.get("horovod.tensorflow")
    if horovod is None or not horovod.is_initialized() or horovod.size() == 1:
        return None
    return horovod
