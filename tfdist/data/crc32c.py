"""Masked CRC-32C, the checksum of TFRecord files; TensorFlow has no public one."""

from functools import cache

import numpy as np
import numpy.typing as npt

# The polynomial is from RFC 3720, B.4; the mask from tensorflow/core/lib/hash/crc32c.h.
_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_ONES = 0xFFFFFFFF


def masked_crc32c(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Return the masked checksum of each row, all of equal length."""
    table = _table()
    crc = np.full(len(rows), _ONES, np.uint32)
    for column in rows.T:
        crc = table[(crc ^ column) & 0xFF] ^ (crc >> 8)
    crc ^= _ONES
    rotated = (crc >> 15) | (crc << 17)
    return (rotated + np.uint32(_MASK_DELTA)).astype(np.uint32)


def unmask(checksum: int) -> int:
    """Return the CRC-32C of a masked checksum."""
    rotated = (checksum - _MASK_DELTA) & _ONES
    return ((rotated >> 17) | (rotated << 15)) & _ONES


@cache
def _table() -> npt.NDArray[np.uint32]:
    """Return the effect of each byte value on the checksum."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ _POLYNOMIAL, table >> 1)
    return table.astype(np.uint32)
