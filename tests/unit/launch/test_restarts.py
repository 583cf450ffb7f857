"""What comes after a failure, decided without starting anything."""

from dataclasses import replace

import pytest

from tfdist.launch.job import Job
from tfdist.launch.restarts import Attempt, Restarts
from tfdist.launch.result import Exit, RunResult
from tfdist.rendezvous.progress import Steps

DONE = RunResult((Exit(0, 0, 1.0), Exit(1, 0, 1.0)))


def failed(slot, slots=(0, 1, 2), begun=None, made=None):
    """Return an attempt that has failed because of one slot."""
    rank = slots.index(slot)
    exits = tuple(Exit(other, 3 * (other == rank), 1.0) for other in range(len(slots)))
    result = RunResult(exits, "failed", failed_rank=rank)
    return Attempt(result, tuple(slots), Steps(begun, made))


# -- whether there is another start -----------------------------------------------


def test_a_failure_is_followed_by_the_same_slots():
    assert Restarts(1).next_slots([failed(1)]) == (0, 1, 2)


def test_restarts_are_used_up():
    restarts = Restarts(2)

    assert restarts.next_slots([failed(0), failed(1)]) == (0, 1, 2)
    assert restarts.next_slots([failed(0), failed(1), failed(2)]) is None
    assert Restarts().next_slots([failed(0)]) is None


@pytest.mark.parametrize("reason", ["done", "signal", "timeout", "output"])
def test_only_a_failure_is_followed_by_a_restart(reason):
    result = replace(DONE, reason=reason, detail="SIGINT")

    assert Restarts(3).next_slots([Attempt(result, (0, 1))]) is None


def test_who_interrupts_a_failing_job_wants_no_restart():
    attempt = failed(1)
    result = replace(attempt.result, was_interrupted=True)

    assert Restarts(3).next_slots([replace(attempt, result=result)]) is None


# -- which slots stay dead --------------------------------------------------------


def test_a_slot_that_fails_first_twice_in_a_row_is_left_out():
    restarts = Restarts(9, min_size=1)

    assert restarts.next_slots([failed(1)]) == (0, 1, 2)
    assert restarts.next_slots([failed(1), failed(1)]) == (0, 2)


def test_slots_that_fail_in_turn_stay():
    restarts = Restarts(9, min_size=1)

    assert restarts.next_slots([failed(1), failed(0), failed(1)]) == (0, 1, 2)


def test_without_a_smaller_size_all_slots_stay():
    assert Restarts(9).next_slots([failed(1), failed(1)]) == (0, 1, 2)


def test_the_smallest_size_is_kept():
    restarts = Restarts(9, min_size=2)
    small = [failed(1), failed(1), failed(2, (0, 2)), failed(2, (0, 2))]

    assert restarts.next_slots(small) == (0, 2)


def test_the_slot_counts_and_not_the_rank():
    """Rank 1 fails each time: it is slot 1 at first, and slot 2 without that."""
    restarts = Restarts(9, min_size=1)
    attempts = [failed(1), failed(1), failed(2, (0, 2))]

    assert restarts.next_slots(attempts) == (0, 2)
    assert restarts.next_slots([*attempts, failed(2, (0, 2))]) == (0,)


@pytest.mark.parametrize(
    ("before", "last", "slots"),
    [
        # It came further than ever before.
        (Steps(0, 57), Steps(50, 58), (0, 1, 2)),
        # It made again what was made before, and no more.
        (Steps(0, 57), Steps(50, 57), (0, 2)),
        (Steps(0, 57), Steps(50, 51), (0, 2)),
        (Steps(0, 57), Steps(50), (0, 2)),
        (Steps(0, 57), Steps(), (0, 2)),
        # The first came to nothing; the second went on from an older run's backup.
        (Steps(), Steps(50, 51), (0, 1, 2)),
        (Steps(), Steps(50, 50), (0, 2)),
        (Steps(), Steps(0, 1), (0, 1, 2)),
    ],
)
def test_progress_between_two_failures_saves_the_slot(before, last, slots):
    attempts = [
        failed(1, begun=before.begun, made=before.made),
        failed(1, begun=last.begun, made=last.made),
    ]

    assert Restarts(9, min_size=1).next_slots(attempts) == slots


# -- what is refused --------------------------------------------------------------


def test_max_restarts_is_not_negative():
    with pytest.raises(ValueError, match=r"max_restarts=-1\. Use 0 to start nothing"):
        Restarts(-1)


def test_min_size_needs_restarts():
    message = r"\(--min-np\) has no effect.*min_size=2, max_restarts=0\. Give max_rest"
    with pytest.raises(ValueError, match=message):
        Restarts(0, min_size=2)


@pytest.mark.parametrize("min_size", [-1, 0, 4])
def test_min_size_is_from_one_to_size(min_size):
    restarts = Restarts(1, min_size=min_size)
    message = rf"at most size \(-np\)\. Received: min_size={min_size}, size=3\. Leave"

    with pytest.raises(ValueError, match=message):
        restarts.check(Job(("/bin/true",), size=3))


@pytest.mark.parametrize("min_size", [None, 1, 3])
def test_a_job_of_ranks_fits(min_size):
    Restarts(1, min_size=min_size).check(Job(("/bin/true",), size=3))


def test_min_size_is_not_for_parameter_servers():
    job = Job(("/bin/true",), workers=2, ps=1)

    Restarts(1).check(job)
    with pytest.raises(ValueError, match=r"min_size=1, workers=2, ps=1\. Leave it out"):
        Restarts(1, min_size=1).check(job)
