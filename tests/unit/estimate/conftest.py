"""Measurements made by hand: a rank with 8 MB of gradients, and an engine of 1 GB/s."""

import pytest

from tfdist.estimate import Link, Measured
from tfdist.estimate.prediction import Calibration, Message, Profile

MIB = 2**20


def _profile(ranks=1, rows=64, seconds=0.1, **changes):
    """Return what one rank measured: each step takes as long."""
    messages = [Message("all_reduce", 2e6, 0.9), Message("all_reduce", 6e6, 1.0)]
    fields = {
        "ranks": ranks,
        "rows": rows,
        "step_seconds": [seconds] * 10,
        "messages": messages if ranks > 1 else [],
        "gradient_bytes": 8 * MIB,
        "peak_bytes": 600 * MIB,
    }
    return Profile(**fields | changes)


def _measured(**changes):
    """Return the measurements on 1 and 2 ranks, on which 8 MB take 9 ms."""
    fields = {
        "alone": _profile(),
        "largest": _profile(2),
        "calibration": Calibration(2, 1e-3, 8_000_000, 9e-3),
        # 1 Gbit/s, 100 us.
        "network": Link(1e-4, 8e-9),
    }
    return Measured(**fields | changes)


@pytest.fixture
def make_profile():
    """Return a function that returns what one rank measured."""
    return _profile


@pytest.fixture
def make_measured():
    """Return a function that returns the measurements of a script."""
    return _measured


@pytest.fixture
def measured():
    """Return the measurements of a script with a batch of its own on each rank."""
    return _measured()
