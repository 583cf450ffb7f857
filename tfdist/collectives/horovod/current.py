"""The collective of a Horovod that the program itself has started."""

import sys
from typing import Any

from tfdist.cluster.detect import is_elastic
from tfdist.collectives.base import Collective


def started_rank() -> int | None:
    """Return the rank of this process; None unless Horovod has several processes."""
    horovod = _started()
    return None if horovod is None else int(horovod.rank())


def started_collective() -> Collective | None:
    """Return the collective of a started Horovod of several processes, if there is one.

    All ranks make the first call together, and connect in it.
    """
    horovod = _started()
    if horovod is None:
        return None
    if is_elastic():
        raise RuntimeError(
            "This callback needs ranks that stay. Received: an elastic job of Horovod. "
            "Use the callbacks of tfdist.horovod there."
        )
    # It lives as long as Horovod's own ranks: connecting again would wait for all.
    ranks = horovod.global_process_set
    if not hasattr(ranks, "tfdist_collective"):
        # Only programs that have started Horovod can import this.
        from tfdist.collectives.horovod.collective import HorovodCollective

        ranks.tfdist_collective = HorovodCollective()
    collective: Collective = ranks.tfdist_collective
    return collective


def _started() -> Any:
    """Return Horovod, if this program has started it with other processes."""
    horovod = sys.modules.get("horovod.tensorflow")
    if horovod is None or not horovod.is_initialized() or horovod.size() == 1:
        return None
    return horovod
