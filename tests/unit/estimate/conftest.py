"""Measurements made by hand: a rank with 8 MB of gradients, and an engine of 1 GB/s."""

import pytest

from tfdist.estimate.prediction import Calibration, Measured
from tfdist.estimate.profile import Memory, Message, Profile

MIB = 2**20


def _profile(ranks=1, rows=64, seconds=0.1, **changes):
    """Return what one rank measured: each step takes as long."""
    messages = [Message("all_reduce", 2e6, 0.9), Message("all_reduce", 6e6, 1.0)]
    fields = {
        "ranks": ranks,
        "rows": rows,
        "step_seconds": [seconds] * 10,
        "memory": Memory(500 * MIB, 8 * MIB, 16 * MIB, 8 * MIB, 632 * MIB),
        "messages": messages if ranks > 1 else [],
        "steps_of_epoch": 100,
        "weight_bytes": [2_000_000] * 4,
    }
    return Profile(**fields | changes)


def _measured(**changes):
    """Return the measurements on 1 and 2 ranks, on which 8 MB take 10 ms."""
    fields = {
        "profiles": {1: [_profile()], 2: [_profile(2), _profile(2)]},
        "calibrations": {
            2: Calibration(
                ranks=2,
                size_bytes=8_000_000,
                messages=2,
                small_seconds=1e-3,
                seconds=10e-3,
                fp16_seconds=6e-3,
                runtime=50 * MIB,
                kept=8 * MIB,
                most=24 * MIB,
            )
        },
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
