"""Whether a program has started Horovod; ranks that talk are in tests/distributed."""

import sys
from types import SimpleNamespace

import pytest

from tfdist.collectives.horovod import current as started
from tfdist.collectives.horovod.current import started_collective, started_rank


@pytest.fixture
def horovod(monkeypatch):
    """Put something in the place of Horovod."""

    def put(*, is_initialized=True, size=2):
        module = SimpleNamespace(
            is_initialized=lambda: is_initialized,
            size=lambda: size,
            rank=lambda: 1,
            global_process_set=SimpleNamespace(),
        )
        monkeypatch.setitem(sys.modules, "horovod.tensorflow", module)
        return module

    return put


def test_a_program_without_horovod_has_none(monkeypatch):
    monkeypatch.delitem(sys.modules, "horovod.tensorflow", raising=False)

    assert (started_rank(), started_collective()) == (None, None)


@pytest.mark.parametrize("options", [{"is_initialized": False}, {"size": 1}])
def test_horovod_that_was_not_started_or_is_alone_is_none(horovod, options):
    horovod(**options)

    assert (started_rank(), started_collective()) == (None, None)


def test_ranks_meet_once(horovod, monkeypatch):
    horovod()
    made = []

    def make(ranks, timeout_seconds):
        ranks.tfdist_collective = object()
        made.append(ranks.tfdist_collective)

    name = "tfdist.collectives.horovod.collective"
    module = SimpleNamespace(HorovodCollective=make)
    monkeypatch.setitem(sys.modules, name, module)

    assert started_rank() == 1
    assert [started_collective(), started_collective()] == made * 2


def test_ranks_that_come_and_go_are_refused(horovod, monkeypatch):
    horovod()
    monkeypatch.setattr(started, "is_elastic", lambda: True)
    with pytest.raises(
        RuntimeError,
        match=r"^This callback needs ranks that stay\. Received: an elastic job of "
        r"Horovod\. Use the callbacks of tfdist\.horovod there\.$",
    ):
        started_collective()
