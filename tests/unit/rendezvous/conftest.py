"""The clock of those who wait for others."""

import time
from types import SimpleNamespace

import pytest

from tfdist.rendezvous import presence
from tfdist.rendezvous.handshake import Handshake

LONG = 1e6


@pytest.fixture
def is_late(monkeypatch):
    """Return a function: from when a condition holds, the time of all waits is up."""

    def let(condition):
        clock = SimpleNamespace(
            monotonic=lambda: time.monotonic() + (LONG if condition() else 0.0),
            sleep=time.sleep,
        )
        monkeypatch.setattr(presence, "time", clock)

    return let


@pytest.fixture
def late_after_one_caller(is_late, monkeypatch):
    """Let the time of rank 0 be up once another rank has come."""
    admit, admitted = Handshake._admit, []

    def admit_and_note(*given):
        admit(*given)
        admitted.append(given)

    monkeypatch.setattr(Handshake, "_admit", admit_and_note)
    is_late(lambda: admitted)
