"""What the end of a process means, case by case."""

import pytest

from tfdist.cluster import Task
from tfdist.launching.restarts import Action, Policy

# Their numbers are 0 to 4.
TASKS = (
    Task("chief", 0),
    Task("worker", 0),
    Task("worker", 1),
    Task("ps", 0),
    Task("ps", 1),
)
SILENT = (Action.GO_ON, "")


def decisions(*ends, restarts=2, tasks=TASKS):
    """Return what is decided on ends that come one after the other."""
    policy = Policy(dict(enumerate(tasks)), restarts=restarts)
    return [policy.judge(rank, code) for rank, code in ends]


def actions(*ends, **options):
    return [action for action, _ in decisions(*ends, **options)]


@pytest.mark.parametrize("code", [1, 137, -9, -15])
def test_no_rank_can_be_missed(code):
    ends = [(0, 0), (1, code), (2, code)]

    found = decisions(*ends, tasks=[None] * 3)

    assert found == [SILENT, (Action.FAIL, ""), (Action.FAIL, "")]


@pytest.mark.parametrize("code", [0, 1, -9])
@pytest.mark.parametrize("rank", [1, 3])
def test_nobody_is_missed_when_the_job_is_done(rank, code):
    assert decisions((0, 0), (rank, code))[1] == SILENT


@pytest.mark.parametrize("rank", [0, 3, 4])
@pytest.mark.parametrize("code", [1, -9])
def test_the_job_fails_with_the_chief_and_with_each_server(rank, code):
    assert decisions((rank, code)) == [(Action.FAIL, "")]


@pytest.mark.parametrize(
    ("code", "notice"),
    [
        (0, "evaluator 0 ended well; it is not started again, and the chief goes on"),
        (3, "evaluator 0 failed with exit code 3; it is not started again, and the"),
    ],
)
def test_the_training_does_not_need_its_evaluator(code, notice):
    [(action, told)] = decisions((5, code), tasks=(*TASKS, Task("evaluator", 0)))

    assert action == Action.GO_ON
    assert told.startswith(notice)


@pytest.mark.parametrize(
    ("failed", "suspects"),
    [({0}, {0}), ({0, 3}, {3}), ({0, 1, 4}, {1, 4}), ({3, 4}, {3, 4})],
)
def test_the_chief_fails_for_want_of_the_others_and_not_they_for_it(failed, suspects):
    assert Policy(dict(enumerate(TASKS)), restarts=0).suspects(failed) == suspects


def test_a_worker_that_fails_is_started_again():
    killed = "worker 1 was killed by SIGKILL (signal 9); it is started again (1 of 2)."
    failed = "worker 0 failed with exit code 3; it is started again (2 of 2)."

    found = decisions((2, -9), (1, 3))

    assert found == [(Action.START_AGAIN, killed), (Action.START_AGAIN, failed)]


def test_when_restarts_are_used_up_the_run_goes_on_while_a_worker_is_left():
    *_, first, last = decisions((1, 1), (1, 1), (1, 1), (2, -11))

    assert first == (
        Action.GO_ON,
        "worker 0 failed with exit code 1; it is not started again (2 of 2 restarts "
        "are used), and the run goes on without it.",
    )
    assert last == (Action.FAIL, "")


def test_a_worker_that_has_ended_well_does_not_carry_the_run():
    assert actions((1, 0), (2, 1), restarts=0) == [Action.GO_ON, Action.FAIL]


@pytest.mark.parametrize(("rank", "name"), [(1, "worker 0"), (4, "ps 1")])
def test_who_ends_well_before_the_chief_is_no_failure(rank, name):
    [decision] = decisions((rank, 0))

    assert decision == (
        Action.GO_ON,
        f"{name} ended well; it is not started again, and the chief goes on without "
        "it.",
    )


def test_all_may_end_well_before_the_chief():
    ends = [(1, 0), (2, 0), (3, 0), (4, 0), (0, 0)]

    assert actions(*ends) == [Action.GO_ON] * 4 + [Action.FINISH]
