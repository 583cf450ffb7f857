"""The facts of this process: `tfdist.rank()` and its companions."""

from tfdist.cluster.detect import detect_membership


def rank() -> int:
    """Return the number of this training process among all of them.

    Returns:
        The rank, from 0 (the chief) to `size() - 1`; 0 when the process runs alone.

    Raises:
        ValueError: If the environment describes a cluster wrongly, or if this process
            is a parameter server or an evaluator, which have no rank.

    Example:
        >>> import tfdist
        >>> tfdist.rank()
        0
    """
    return detect_membership().rank


def size() -> int:
    """Return the number of processes that train together.

    Returns:
        The number of chief and workers, at least 1.

    Raises:
        ValueError: If the environment describes a cluster wrongly.

    Example:
        >>> import tfdist
        >>> global_batch_size = 64 * tfdist.size()
    """
    return detect_membership().size


def local_rank() -> int:
    """Return the number of this training process among those on the same host.

    It is what a process needs to choose its GPU or its share of the cores.

    Returns:
        The local rank, from 0 to `local_size() - 1`; 0 when the process runs alone.

    Raises:
        ValueError: If the environment describes a cluster wrongly, or if this process
            is a parameter server or an evaluator, which have no rank.

    Example:
        >>> import tfdist
        >>> tfdist.local_rank()
        0
    """
    return detect_membership().local_rank


def local_size() -> int:
    """Return the number of processes that train together on this host.

    Returns:
        The number of training processes with this one's host, at least 1.

    Raises:
        ValueError: If the environment describes a cluster wrongly, or if this process
            is a parameter server or an evaluator, which do not train.

    Example:
        >>> import tfdist
        >>> tfdist.local_size()
        1
    """
    return detect_membership().local_size


def is_chief() -> bool:
    """Return whether this process is rank 0, the one that prints and writes files.

    Returns:
        True for rank 0 and for a process that runs alone; False for every other,
        parameter servers and evaluators included.

    Raises:
        ValueError: If the environment describes a cluster wrongly.

    Example:
        >>> import tfdist
        >>> if tfdist.is_chief():
        ...     print("only once")
        only once
    """
    return detect_membership().is_chief
