"""Several processes as one, and which of them failed first."""

import select
import signal
import time

import pytest

from tfdist.cluster import Task
from tfdist.launch.job import ProcessSpec
from tfdist.launch.output import Output, OutputPump
from tfdist.launch.process_group import Failure, ProcessGroup, first_failure

SECONDS = 30
FOREVER = "exec sleep 1000"


@pytest.fixture
def group():
    """Return a group that starts nothing yet; end its processes afterwards."""
    pump = OutputPump(Output(console=False), on_end=lambda: None, on_error=lambda: None)
    group = ProcessGroup(pump)
    yield group
    group.close()
    pump.close()


def spec_of(rank, script, task=None):
    return ProcessSpec(rank, ("/bin/bash", "-c", script), {}, task=task)


def await_end(*processes):
    for process in processes:
        while not process.is_gone:
            assert select.select([process], [], [], SECONDS)[0], "no news"
            process.receive()


def test_they_are_gone_when_the_last_is(group):
    first = group.start(spec_of(0, "exit 0"))
    second = group.start(spec_of(1, FOREVER))
    await_end(first)
    assert (group.running(), group.is_gone) == ((1,), False)

    group.send(signal.SIGTERM)
    await_end(second)

    assert (group.running(), group.is_gone) == ((), True)


def test_how_they_have_ended(group):
    before = time.monotonic()
    processes = [
        group.start(spec_of(0, "exit 3", Task("chief", 0))),
        group.start(spec_of(1, "kill $$", Task("ps", 0))),
    ]
    await_end(*processes)

    chief, ps = group.exits(before)

    assert (chief.name, chief.code, ps.name, ps.code) == ("chief", 3, "ps 0", -15)
    assert 0 < chief.seconds < SECONDS


def test_who_has_no_part_in_it_did_not_fail_first(group):
    for rank, code in enumerate((1, 2, 3)):
        await_end(group.start(spec_of(rank, f"exit {code}")))

    assert group.first_failure({0, 1, 2}) == 0
    assert group.first_failure({1, 2}) == 1


def test_a_guardian_that_is_stopped_is_given_up(group):
    process = group.start(spec_of(0, FOREVER))
    process._guardian.send_signal(signal.SIGSTOP)

    group.give_up()
    await_end(process)

    assert [exit_.code for exit_ in group.exits(0.0)] == [-9]


@pytest.mark.parametrize(
    ("failures", "rank"),
    [
        ([Failure(2, 5.0)], 2),
        ([Failure(0, 5.1), Failure(1, 5.0)], 1),
        # Rank 0 prints its traceback, cleans up, and exits after its peer.
        ([Failure(0, 7.0, 5.0), Failure(1, 6.0)], 0),
        ([Failure(0, 7.0, 5.0), Failure(1, 6.0, 4.9)], 1),
        # The traceback was logged long before, and about something else.
        ([Failure(0, 70.0, 5.0), Failure(1, 69.0)], 1),
        # What is read late counts no later than the end.
        ([Failure(0, 5.0, 5.2), Failure(1, 5.1)], 0),
        # Of two at the same time, the lower.
        ([Failure(0, 5.0), Failure(1, 5.0)], 0),
        # A peer saw the closed connection before anybody was told of the kill.
        ([Failure(0, 9.0, 5.0), Failure(1, 5.2, was_killed=True)], 1),
        # Killed because the other had failed: the traceback is much older.
        ([Failure(0, 9.0, 5.0), Failure(1, 8.0, was_killed=True)], 0),
    ],
)
def test_first_failure(failures, rank):
    assert first_failure(failures) == rank
