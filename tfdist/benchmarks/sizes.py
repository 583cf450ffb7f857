"""Sizes in bytes, as people write them."""

import re

_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE = re.compile(r"(\d+)\s*([A-Za-z]*)")


def parse_size(text: str) -> int:
    """Read a size.

    Args:
        text: A whole number and a unit: B, KiB, MiB or GiB, in any case.

    Returns:
        The bytes, a multiple of 4: the benchmarks move float32 numbers.

    Raises:
        ValueError: If it is no such size.

    Example:
        >>> parse_size("64KiB")
        65536
    """
    match = _SIZE.fullmatch(text.strip())
    units = {unit.lower(): factor for unit, factor in _UNITS.items()}
    factor = units.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(
            "A size must be a whole number and a unit: B, KiB, MiB or GiB. "
            f"Received: {text!r}. Write it as 64KiB or 8MiB."
        )
    size = int(match[1]) * factor
    if size <= 0 or size % 4:
        raise ValueError(
            "A size must be a positive multiple of 4 bytes, because float32 numbers "
            f"are moved. Received: {text!r}. Use {max(4, size // 4 * 4)}B."
        )
    return size


def format_size(size_bytes: int) -> str:
    """Write a size with the largest unit that keeps it whole.

    Args:
        size_bytes: The size in bytes.

    Returns:
        What `parse_size` reads.

    Example:
        >>> format_size(65536)
        '64 KiB'
    """
    unit, factor = "B", 1
    for larger, its_factor in _UNITS.items():
        if size_bytes % its_factor == 0 and its_factor > factor:
            unit, factor = larger, its_factor
    return f"{size_bytes // factor} {unit}"
