"""Each sentence about restarts, and the sums in them."""

import pytest

from tfdist.cluster import Task
from tfdist.launch.restart_report import notice, report
from tfdist.launch.restarts import Attempt, Restarts
from tfdist.launch.result import Exit, RunResult
from tfdist.rendezvous.progress import Steps

THREE = Restarts(3, min_size=1)


def attempt(*steps, codes=(0, -9, 0), slots=None, failed_rank=1):
    exits = tuple(Exit(rank, code, 2.0) for rank, code in enumerate(codes))
    result = RunResult(exits, "failed", failed_rank=failed_rank)
    return Attempt(result, slots or tuple(range(len(codes))), Steps(*steps))


def done(*steps, slots=(0, 1, 2)):
    exits = tuple(Exit(rank, 0, 2.0) for rank in range(len(slots)))
    return Attempt(RunResult(exits), slots, Steps(*steps))


def test_a_restart_is_announced_with_its_cause():
    line = notice(THREE, [attempt(), attempt(codes=(5, 0), failed_rank=0)], (0, 1))

    assert line == "restart 2 of 3: rank 0 failed with exit code 5 after 2.0 s."


@pytest.mark.parametrize(
    ("slots", "count"), [((0, 2), "2 processes"), ((2,), "1 process")]
)
def test_a_slot_that_is_left_out_is_announced(slots, count):
    last = len(slots)
    before = attempt(slots=(*slots, 1), codes=(0,) * last + (3,), failed_rank=last)

    line = notice(THREE, [before, before], slots)

    assert line.endswith(
        f" Slot 1 stays dead and is left out: it goes on with {count}."
    )


def test_without_a_restart_there_is_no_report():
    assert report(THREE, [attempt(0, 57)]) == []


def test_the_steps_that_were_lost_are_counted():
    lines = report(THREE, [attempt(0, 57), attempt(50, 81), done(80, 100)])

    assert lines == [
        "restart 1: rank 1 was killed by SIGKILL after step 57; "
        "went on from step 50 on 3 processes: 7 steps lost.",
        "restart 2: rank 1 was killed by SIGKILL after step 81; "
        "went on from step 80 on 3 processes: 1 step lost.",
        "2 of 3 restarts used: 8 steps lost in all.",
    ]


def test_nothing_may_be_lost():
    lines = report(THREE, [attempt(0), done(0, 9)])

    assert lines == [
        "restart 1: rank 1 was killed by SIGKILL before its first step; "
        "went on from step 0 on 3 processes: no step lost.",
        "1 of 3 restarts used: no step lost in all.",
    ]


def test_a_start_that_came_to_nothing_loses_nothing_by_itself():
    lines = report(THREE, [attempt(0, 57), attempt(), done(50, 60)])

    assert lines == [
        "restart 1: rank 1 was killed by SIGKILL after step 57; "
        "started again on 3 processes, which came to no step.",
        "restart 2: rank 1 was killed by SIGKILL before its first step; "
        "went on from step 50 on 3 processes: 7 steps lost.",
        "2 of 3 restarts used: 7 steps lost in all.",
    ]


def test_steps_that_were_made_again_and_lost_again_count_twice():
    lines = report(THREE, [attempt(0, 57), attempt(50, 52), done(50, 60)])

    assert lines[-1] == "2 of 3 restarts used: 9 steps lost in all."


def test_a_backup_of_an_older_run_is_no_gain():
    lines = report(THREE, [attempt(), done(50, 60)])

    assert lines[0].endswith("went on from step 50 on 3 processes: no step lost.")


def test_without_a_backup_the_steps_are_not_known():
    lines = report(THREE, [attempt(), done()])

    assert lines == [
        "restart 1: rank 1 was killed by SIGKILL; started again on 3 processes.",
        "1 of 3 restarts used; how many steps were lost is not known: "
        "tfdist.callbacks.BackupAndRestore tells, and goes on from its last backup.",
    ]


def test_who_has_another_rank_than_slot_is_told_by_both():
    lines = report(THREE, [attempt(slots=(0, 2, 3)), done(slots=(0, 3))])

    assert lines[0] == (
        "restart 1: rank 1 (slot 2) was killed by SIGKILL; started again on "
        "2 processes."
    )


def test_tasks_are_told_by_their_names():
    exits = (Exit(0, 0, 1.0, task=Task("chief", 0)), Exit(1, 4, 1.0, (), Task("ps", 0)))
    lost = Attempt(RunResult(exits, "failed", failed_rank=1), (0, 1))

    assert "ps 0 failed with exit code 4; started" in report(THREE, [lost, lost])[0]
