"""Bytes that ranks give each other, of any number."""

import base64

import numpy as np
import tensorflow as tf

from tfdist.collectives import Collective

# What travels at once takes its size twice over in memory.
_PIECE = 8 * 2**20
# So much goes at once with its length; a tensor takes longer to gather.
_SMALL = 2**18


def gather_bytes(collective: Collective, content: bytes, name: str) -> list[bytes]:
    """Give bytes, and get those of all ranks.

    Args:
        collective: How the ranks talk.
        content: This rank's.
        name: What they are, the same on every rank.

    Returns:
        Those of each rank, by rank.
    """
    if collective.size == 1:
        return [content]
    text = base64.b64encode(content).decode() if len(content) <= _SMALL else None
    given = collective.exchange(name, [len(content), text])
    texts = [text for _, text in given if text is not None]
    if len(texts) == collective.size:
        return [base64.b64decode(text) for text in texts]
    joined = collective.all_gather(_tensor(content), name=name).numpy().tobytes()
    ends = np.cumsum([length for length, _ in given]).tolist()
    return [
        joined[end - length : end] for end, (length, _) in zip(ends, given, strict=True)
    ]


def broadcast_bytes(
    collective: Collective, content: bytes | None, name: str
) -> bytes | None:
    """Get the bytes of rank 0.

    Args:
        collective: How the ranks talk.
        content: Rank 0's, if it has any; those of others are not looked at.
        name: What they are, the same on every rank.

    Returns:
        Rank 0's bytes, None if it has none.
    """
    if collective.size == 1:
        return content
    is_root = collective.rank == 0
    own = len(content) if is_root and content is not None else None
    length = collective.exchange(f"the length of {name}", own)[0]
    if length is None:
        return None
    pieces = []
    for start in range(0, length, _PIECE):
        piece = bytes(min(_PIECE, length - start))
        if is_root and content is not None:
            piece = content[start : start + _PIECE]
        (given,) = collective.broadcast([_tensor(piece)], name=name)
        pieces.append(given.numpy().tobytes())
    return b"".join(pieces)


def _tensor(content: bytes) -> tf.Tensor:
    """Return bytes as a vector of numbers."""
    return tf.constant(np.frombuffer(content, np.uint8))
