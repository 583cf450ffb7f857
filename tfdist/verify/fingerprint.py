"""Fingerprints of batches and of arrays."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdist.verify.recording import Batch

_MODULUS = 2**64


def batch_of(leaves: Sequence[Any], own: int | None = None) -> Batch:
    """Describe a batch so that the parts of several processes can be added up.

    Args:
        leaves: Arrays whose first dimension is the batch's.
        own: How many rows count. Default None: all of them.

    Returns:
        The rows and their fingerprint, which does not depend on their order.

    Example:
        >>> whole = batch_of([np.arange(6).reshape(3, 2)])
        >>> parts = [batch_of([np.arange(6).reshape(3, 2)[i:i + 1]]) for i in range(3)]
        >>> sum(part.fingerprint for part in parts) % 2**64 == whole.fingerprint
        True
    """
    rows = min((len(leaf) for leaf in leaves), default=0)
    rows = rows if own is None else min(rows, own)
    hashes = [_hash_row(leaves, row) for row in range(rows)]
    return Batch(rows, sum(hashes) % _MODULUS, len(set(hashes)))


def joined(batches: Sequence[Batch]) -> Batch:
    """Put the parts of a batch together.

    Args:
        batches: One for each process.

    Returns:
        The whole; of `distinct` no more is known than the largest part's.
    """
    return Batch(
        sum(batch.rows for batch in batches),
        sum(batch.fingerprint for batch in batches) % _MODULUS,
        max(batch.distinct for batch in batches),
    )


def digest(array: Any) -> Any:
    """Return a short array that is equal for arrays with the same bits.

    Args:
        array: Any array.

    Returns:
        16 bytes, as an array.
    """
    content = np.ascontiguousarray(array).tobytes()
    return np.frombuffer(hashlib.blake2b(content, digest_size=16).digest(), np.uint8)


def _hash_row(leaves: Sequence[Any], row: int) -> int:
    """Hash one row of all leaves."""
    state = hashlib.blake2b(digest_size=8)
    for leaf in leaves:
        part = leaf[row]
        # Strings come as objects, which have no bytes of their own.
        is_text = leaf.dtype == object
        content = repr(np.asarray(part).tolist()).encode() if is_text else b""
        state.update(content or np.ascontiguousarray(part).tobytes())
    return int.from_bytes(state.digest(), "little")
