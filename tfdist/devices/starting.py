"""What TensorFlow takes only before it starts its devices."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def before_start(what: str, received: str) -> Iterator[None]:
    """Explain an error of TensorFlow that its devices have already started.

    Args:
        what: What must come before, such as "A device must be split".
        received: What was asked for, such as "device='CPU:0'".

    Raises:
        RuntimeError: If the block raises one.
    """
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"{what} before TensorFlow starts its devices. Received: {received} in a "
            f"TensorFlow that has already started them ({error}). Do it first thing in "
            "the program, before any strategy, tensor, dataset, layer or model."
        ) from error
