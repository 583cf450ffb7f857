"""What a process may ask about itself: `tfdist.rank()` and its companions."""

from tfdist.cluster.detect import detect, detect_place
from tfdist.cluster.model import Cluster
from tfdist.cluster.place import Place


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
    return _this_process().rank


def size() -> int:
    """Return how many processes train together.

    Returns:
        The number of chief and workers, at least 1.

    Raises:
        ValueError: If the environment describes a cluster wrongly.

    Example:
        >>> import tfdist
        >>> global_batch_size = 64 * tfdist.size()
    """
    return _this_process().size


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
    return _this_process().local_rank


def local_size() -> int:
    """Return how many processes train together on this host.

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
    return _this_process().local_size


def is_chief() -> bool:
    """Say whether this process is rank 0, the one that prints and writes files.

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
    return _this_process().is_chief


def _this_process() -> Cluster | Place:
    """Return what knows this process.

    For a parameter server and an evaluator that is the cluster, as they have no place
    among those that train.
    """
    cluster = detect()
    return detect_place() if cluster.task.trains else cluster
