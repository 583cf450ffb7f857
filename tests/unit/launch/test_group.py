"""Several processes as one."""

import select
import signal
import time

import pytest

from tfdist.cluster import Task
from tfdist.launch.group import ProcessGroup
from tfdist.launch.output import Output, OutputPump
from tfdist.launch.spec import ProcessSpec

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


def test_a_process_takes_the_place_of_another(group):
    await_end(group.start(spec_of(0, "exit 3")))

    await_end(group.start(spec_of(0, "exit 0")))

    assert [exit_.code for exit_ in group.exits(0.0)] == [0]


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
