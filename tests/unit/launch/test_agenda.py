"""What is due when, by a clock that is set."""

import pytest

from tfdist.launch.agenda import Agenda


@pytest.fixture
def clock():
    """Return a list with the time, which is what the clock of the agenda shows."""
    return [100.0]


@pytest.fixture
def agenda(clock):
    return Agenda(clock=lambda: clock[0])


def test_nothing_is_ever_due(agenda):
    agenda.do_due()

    assert agenda.seconds_to_next() is None


def test_each_is_done_once_when_it_is_due(agenda, clock):
    done = []
    agenda.plan(2.0, lambda: done.append("stage"))
    agenda.add(1.0, lambda: done.append("first"))
    agenda.add(3.0, lambda: done.append("last"))
    waits = []

    for seconds in (100.5, 101.0, 102.5, 104.0):
        waits.append(agenda.seconds_to_next())
        clock[0] = seconds
        agenda.do_due()

    assert waits == [1.0, 0.5, 1.0, 0.5]
    assert done == ["first", "stage", "last"]
    assert agenda.seconds_to_next() is None


def test_what_is_late_is_due_at_once(agenda, clock):
    agenda.plan(2.0, lambda: None)
    clock[0] = 105.0

    assert agenda.seconds_to_next() == 0.0


def test_a_stage_takes_the_place_of_the_last(agenda, clock):
    done = []
    agenda.plan(1.0, lambda: done.append("first"))
    agenda.plan(2.0, lambda: done.append("second"))
    clock[0] = 103.0
    agenda.do_due()

    assert done == ["second"]


def test_a_stage_may_plan_the_next(agenda, clock):
    done = []
    agenda.plan(0.0, lambda: agenda.plan(1.0, lambda: done.append("next")))
    agenda.do_due()
    assert (done, agenda.seconds_to_next()) == ([], 1.0)

    clock[0] = 101.0
    agenda.do_due()

    assert done == ["next"]
