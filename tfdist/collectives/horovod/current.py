"""The ranks of a Horovod that a program has started, as `tfdist.horovod` does."""

import sys
from typing import Any

from tfdist.cluster.detect import is_elastic
from tfdist.collectives.base import Collective

# The one collective of this process, once its ranks have met.
_MET: list[Collective] = []


def started_rank() -> int | None:
    """Return the rank of this process, None if no Horovod of several was started."""
    horovod = _started()
    return None if horovod is None else int(horovod.rank())


def started_collective() -> Collective | None:
    """Return how the ranks talk; for the first time all of them have to ask together.

    Returns:
        The collective; None if no Horovod of several processes was started.

    Raises:
        RuntimeError: In an elastic job, whose ranks come and go.
    """
    if _started() is None:
        return None
    if is_elastic():
        raise RuntimeError(
            "This callback needs ranks that stay. Received: an elastic job of Horovod. "
            "Use the callbacks of tfdist.horovod there."
        )
    if not _MET:
        # Only programs that have started Horovod have it.
        from tfdist.collectives.horovod.collective import HorovodCollective

        _MET.append(HorovodCollective())
    return _MET[0]


def _started() -> Any:
    """Return Horovod, if this program has started it with other processes."""
    horovod = sys.modules.get("horovod.tensorflow")
    if horovod is None or not horovod.is_initialized() or horovod.size() == 1:
        return None
    return horovod
