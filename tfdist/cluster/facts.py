"""Facts about this process: `tfdist.rank()` and its companions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tfdist.cluster.detect import detect_membership
from tfdist.cluster.model import Membership


def rank() -> int:
    """Return the rank of this training process.

    Returns:
        The rank, from 0 (the chief) to `size() - 1`; 0 if the process runs alone. With
        parameter servers the chief, which does not train, has rank 0, and the workers
        have 1 to `size()`; only the chief goes on after the strategy is created.

    Raises:
        ValueError: If the environment describes an invalid cluster, or if this process
            is a parameter server or an evaluator, which have no rank.

    Example:
        >>> import tfdist
        >>> tfdist.rank()
        0
    """
    return _membership().rank


def size() -> int:
    """Return the number of processes that train together.

    A global batch of `64 * size()` gives 64 examples to each of them. Asynchronous
    parameter servers are the exception: there each batch goes to one worker as a whole.

    Returns:
        The number of training processes, at least 1. The chief is one of them, but not
        with parameter servers, where it is the number of workers.

    Raises:
        ValueError: If the environment describes an invalid cluster.

    Example:
        >>> import tfdist
        >>> global_batch_size = 64 * tfdist.size()
    """
    member = _membership()
    return len(member.cluster.workers) if member.cluster.ps else member.size


def local_rank() -> int:
    """Return the rank of this process among the training processes on its host.

    Use it to choose a GPU or a share of the cores.

    Returns:
        The local rank, from 0 to `local_size() - 1`; 0 if the process runs alone. With
        parameter servers the chief has one, too.

    Raises:
        ValueError: If the environment describes an invalid cluster, or if this process
            is a parameter server or an evaluator, which have no rank.

    Example:
        >>> import tfdist
        >>> tfdist.local_rank()
        0
    """
    return _membership().local_rank


def local_size() -> int:
    """Return the number of processes that train together on this host.

    Returns:
        The number of training processes on this host, this one included. With parameter
        servers also the chief, because it needs cores.

    Raises:
        ValueError: If the environment describes an invalid cluster, or if this process
            is a parameter server or an evaluator, which do not train.

    Example:
        >>> import tfdist
        >>> tfdist.local_size()
        1
    """
    return _membership().local_size


def is_chief() -> bool:
    """Return whether this process is the chief, which prints and writes files.

    Returns:
        True for rank 0 and for a process that runs alone; False for other ranks,
        parameter servers and evaluators. With parameter servers it is True wherever a
        program goes on after it has created the strategy.

    Raises:
        ValueError: If the environment describes an invalid cluster.

    Example:
        >>> import tfdist
        >>> if tfdist.is_chief():
        ...     print("only once")
        only once
    """
    return _membership().is_chief


class _Process:
    """The membership that this process takes for its own, if it simulates a rank."""

    simulated: Callable[[], Membership] | None = None


@contextmanager
def simulating(membership: Callable[[], Membership]) -> Iterator[None]:
    """Let the facts of a block be those of a simulated rank."""
    before, _Process.simulated = _Process.simulated, membership
    try:
        yield
    finally:
        _Process.simulated = before


def _membership() -> Membership:
    """Return the membership of this process, or of the rank that it simulates."""
    return (_Process.simulated or detect_membership)()
