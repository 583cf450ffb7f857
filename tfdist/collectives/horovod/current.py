"""The collective over Horovod, if the program has initialized Horovod itself."""

import sys
from typing import Any

from tfdist.cluster.detect import is_elastic
from tfdist.collectives.base import Collective


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
    # Kept as long as Horovod's ranks, because connecting again would wait for all.
    ranks = horovod.global_process_set
    if not hasattr(ranks, "tfdist_collective"):
        # Only programs with Horovod can import this.
        from tfdist.collectives.horovod.collective import HorovodCollective

        ranks.tfdist_collective = HorovodCollective()
    collective: Collective = ranks.tfdist_collective
    return collective


def _started() -> Any:
    """Return Horovod, or None unless the program has initialized it with peers."""
    horovod = sys.modules.get("horovod.tensorflow")
    if horovod is None or not horovod.is_initialized() or horovod.size() == 1:
        return None
    return horovod
