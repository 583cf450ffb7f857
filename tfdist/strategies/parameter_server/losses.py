"""Errors of TensorFlow that mean a lost server, in words that name it."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tensorflow as tf

from tfdist.cluster import Cluster

_SERVER = re.compile(r"/job:ps/replica:0/task:(\d+)")


@contextmanager
def naming_lost_servers(
    cluster: Cluster, abandon: Callable[[], None]
) -> Iterator[None]:
    """Turn errors that come of a lost server into one that names it.

    Args:
        cluster: Who is in the job.
        abandon: Is called if the block ends with any error.

    Yields:
        Nothing; the block is what needs the servers.

    Raises:
        ConnectionError: If a server is lost.
    """
    try:
        yield
    except StopIteration:
        raise
    except BaseException as error:
        abandon()
        name = lost_server(error, cluster)
        if name is None:
            raise
        raise ConnectionError(
            f"{name} is lost, and the variables that it held. Received: "
            f"{type(error).__name__} from TensorFlow. Start the job again; "
            "keras.callbacks.BackupAndRestore goes on from the last backup."
        ) from error


def lost_server(error: BaseException, cluster: Cluster) -> str | None:
    """Return the name of the server whose loss an error comes of, if it does.

    Args:
        error: An error.
        cluster: Who is in the job.

    Returns:
        Such as "ps 0 (node1:2222)"; None for any other error.

    Example:
        >>> cluster = Cluster(chief="a:1", workers=("b:1",), ps=("c:1",))
        >>> lost_server(ValueError("wrong"), cluster) is None
        True
    """
    if not isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError):
        return None
    text = str(error)
    found = _SERVER.search(text)
    index = int(found.group(1)) if found else _index_by_address(text, cluster.ps)
    return None if index is None else f"ps {index} ({cluster.ps[index]})"


def _index_by_address(text: str, addresses: tuple[str, ...]) -> int | None:
    """Return which server a text speaks of by its address."""
    named = [i for i, address in enumerate(addresses) if address in text]
    return named[0] if named else None
