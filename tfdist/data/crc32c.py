"""The checksum of TFRecord files: CRC-32C, masked; TensorFlow has no public one."""

from functools import cache

import numpy as np
import numpy.typing as npt

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_ONES = 0xFFFFFFFF


def masked_crc32c(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Compute the checksum that TFRecord files hold, of many short strings at once.

    Args:
        rows: One string in each row, all of the same length.

    Returns:
        The checksum of each row.

    Example:
        >>> text = np.frombuffer(b"123456789", np.uint8)
        >>> hex(unmask(int(masked_crc32c(text[np.newaxis])[0])))
        '0xe3069283'

    References:
        RFC 3720, appendix B.4, has the polynomial; tensorflow/core/lib/hash/crc32c.h
        the mask.
    """
    table = _table()
    crc = np.full(len(rows), _ONES, np.uint32)
    for column in rows.T:
        crc = table[(crc ^ column) & 0xFF] ^ (crc >> 8)
    crc ^= _ONES
    rotated = (crc >> 15) | (crc << 17)
    return (rotated + np.uint32(_MASK_DELTA)).astype(np.uint32)


def unmask(checksum: int) -> int:
    """Return the CRC-32C itself.

    Args:
        checksum: What stands in the file.
    """
    rotated = (checksum - _MASK_DELTA) & _ONES
    return ((rotated >> 17) | (rotated << 15)) & _ONES


@cache
def _table() -> npt.NDArray[np.uint32]:
    """Return what each value of a byte does to the checksum."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ _POLYNOMIAL, table >> 1)
    return table.astype(np.uint32)
