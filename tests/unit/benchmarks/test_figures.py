"""Figures against numbers worked out by hand."""

import pytest

from tfdist.benchmarks import run_allreduce
from tfdist.benchmarks.allreduce import allreduce_figures, format_size, parse_size
from tfdist.benchmarks.figures import spread


def even(median):
    return {name: pytest.approx(median) for name in ("median", "low", "high")}


def test_a_spread_is_the_median_and_the_quartiles():
    assert spread([5.0, 1.0, 4.0, 2.0, 3.0]) == {"median": 3.0, "low": 2.0, "high": 4.0}
    assert spread([2.0]) == even(2.0)


def test_an_all_reduce_needs_two_processes():
    with pytest.raises(ValueError, match="size must be at least 2.*size=1"):
        run_allreduce(1, [4], repeats=1)


def test_an_all_reduce_ends_when_the_last_rank_has_its_result():
    ranks = [
        {"tfdist": [0.001, 0.004, 0.002], "single_ring": [0.004, 0.002, 0.002]},
        {"tfdist": [0.002, 0.001, 0.002], "single_ring": [0.002, 0.006, 0.002]},
    ]

    figures = allreduce_figures(4_000_000, ranks)

    # Slowest of both: 2, 4 and 2 ms against 4, 6 and 2 ms.
    assert figures == {
        "bytes": 4_000_000,
        "seconds": {"tfdist": 0.002, "single_ring": 0.004},
        "bus_bytes_per_second": pytest.approx({"tfdist": 2e9, "single_ring": 1e9}),
        "bandwidth_against": {
            "single_ring": {"median": 1.5, "low": 1.25, "high": 1.75}
        },
    }


@pytest.mark.parametrize(
    ("text", "size"), [("64KiB", 65536), (" 8 mib ", 2**23), ("1024", 1024)]
)
def test_a_size_is_read_and_written(text, size):
    assert parse_size(text) == size
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize("text", ["8MB", "1.5KiB", "10"])
def test_a_size_that_is_rejected(text):
    error = f"A size must be a positive multiple of 4 bytes.* Received: '{text}'. Write"
    with pytest.raises(ValueError, match=error):
        parse_size(text)


def test_the_largest_unit_that_keeps_a_size_whole():
    assert [format_size(n) for n in (12, 1536, 2**20, 3 * 2**30)] == [
        *("12 B", "1536 B", "1 MiB", "3 GiB")
    ]
