"""Which cores there are, and each process's share of them."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")


def available_cores(topology: Path = _TOPOLOGY) -> tuple[int, ...]:
    """List the cores that this process may use, neighbours side by side.

    The kernel often numbers the second hardware threads after all first ones. Cores
    that share a chip and its caches are brought together here, so that a contiguous
    share is a compact one.

    Args:
        topology: The folder in which the kernel describes the cores.

    Returns:
        The numbers of the cores by chip, then by physical core.

    Raises:
        OSError: If this is not Linux.

    Example:
        >>> len(available_cores()) >= 1
        True
    """
    if sys.platform != "linux":
        raise OSError(
            "tfdist starts processes on Linux only. "
            f"Received: sys.platform={sys.platform!r}. Use a container or a VM."
        )

    def place(core: int) -> tuple[int, int, int]:
        folder = topology / f"cpu{core}" / "topology"
        chip = _read_number(folder / "physical_package_id")
        return chip, _read_number(folder / "core_id"), core

    return tuple(sorted(os.sched_getaffinity(0), key=place))


def share_of_cores(cores: Sequence[int], *, rank: int, size: int) -> tuple[int, ...]:
    """Give one process its share of the cores.

    What does not divide goes to the first ranks, as the chief has more to do.

    Args:
        cores: All cores, neighbours side by side.
        rank: Number of the process, from 0 to `size - 1`.
        size: How many processes share the cores.

    Returns:
        Its cores; none if there are more processes than cores.

    Example:
        >>> [share_of_cores([0, 1, 2, 3, 4], rank=rank, size=2) for rank in (0, 1)]
        [(0, 1, 2), (3, 4)]
    """
    each, left_over = divmod(len(cores), size)
    if each == 0:
        return ()
    start = rank * each + min(rank, left_over)
    return tuple(cores[start : start + each + (rank < left_over)])


def _read_number(path: Path) -> int:
    """Return the number in a file, 0 where the kernel does not tell."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
