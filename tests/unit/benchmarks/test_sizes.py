"""Sizes as people write them."""

import pytest

from tfdist.benchmarks import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4", 4),
        ("8B", 8),
        ("1KiB", 1024),
        ("64 kib", 65_536),
        (" 8MiB ", 8_388_608),
        ("2GiB", 2_147_483_648),
    ],
)
def test_what_is_read(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "whole number and a unit: B, KiB, MiB or GiB. Received: ''. Write it as"),
        ("8MB", "Received: '8MB'. Write it as 64KiB or 8MiB."),
        ("1.5MiB", "Received: '1.5MiB'"),
        ("-4", "Received: '-4'"),
        ("MiB", "Received: 'MiB'"),
        ("0", "positive multiple of 4 bytes.* Received: '0'. Use 4B."),
        ("10", "positive multiple of 4 bytes.* Received: '10'. Use 8B."),
    ],
)
def test_what_is_refused(text, error):
    with pytest.raises(ValueError, match=error):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (4, "4 B"),
        (1020, "1020 B"),
        (1024, "1 KiB"),
        (1536, "1536 B"),
        (3 * 2**20, "3 MiB"),
        (2**30, "1 GiB"),
    ],
)
def test_what_is_written_is_what_was_read(size, text):
    assert format_size(size) == text
    assert parse_size(text) == size
