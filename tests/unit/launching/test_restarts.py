"""Restarts of a job, decided and reported without starting anything."""

from dataclasses import replace

import pytest

from tfdist.launching.restarts import Attempt, Restarts
from tfdist.launching.result import Exit, RunResult

DONE = RunResult((Exit(0, 0, 1.0), Exit(1, 0, 1.0)))


def failed(slot, slots=(0, 1, 2), saved_step=None):
    """Return an attempt that has failed because of one slot."""
    rank = slots.index(slot)
    exits = tuple(Exit(other, 3 * (other == rank), 1.0) for other in range(len(slots)))
    result = RunResult(exits, "failed", failed_rank=rank)
    return Attempt(result, tuple(slots), saved_step)


def test_a_failure_is_followed_by_the_same_slots_until_restarts_are_used_up():
    restarts = Restarts(2)

    assert restarts.next_slots([failed(0), failed(1)]) == (0, 1, 2)
    assert restarts.next_slots([failed(0), failed(1), failed(2)]) is None
    assert Restarts().next_slots([failed(0)]) is None


@pytest.mark.parametrize("reason", ["done", "signal", "timeout", "output"])
def test_only_a_failure_is_followed_by_a_restart(reason):
    result = replace(DONE, reason=reason, detail="SIGINT")

    assert Restarts(3).next_slots([Attempt(result, (0, 1))]) is None


def test_a_failing_job_that_is_interrupted_is_not_restarted():
    attempt = failed(1)
    result = replace(attempt.result, was_interrupted=True)

    assert Restarts(3).next_slots([replace(attempt, result=result)]) is None


@pytest.mark.parametrize(
    ("code", "line", "saved_step", "is_restarted"),
    [
        (1, "TypeError: fit() got an unexpected argument", None, False),
        (1, "ModuleNotFoundError: No module named 'no_such'", None, False),
        (1, "ValueError: of step 7", 5, True),
        (1, "OSError: the disk is away", None, True),
        (3, "TypeError: printed by a program that exits with 3", None, True),
    ],
)
def test_an_error_that_every_start_would_meet_ends_the_job(
    code, line, saved_step, is_restarted
):
    result = RunResult((Exit(0, code, 1.0, (line,)),), "failed", failed_rank=0)
    attempts = [Attempt(result, (0,), saved_step)]

    assert Restarts(3).next_slots(attempts) == ((0,) if is_restarted else None)
    error = line.partition(":")[0]
    text = f"not started again: {error} before a state was saved."
    assert Restarts(3).report(attempts) == ([] if is_restarted else [text])


SMALL = [failed(1), failed(1), failed(2, (0, 2))]


@pytest.mark.parametrize(
    ("min_size", "attempts", "slots"),
    [
        (1, [failed(1)], (0, 1, 2)),
        (1, [failed(1), failed(1)], (0, 2)),
        (None, [failed(1), failed(1)], (0, 1, 2)),
        (1, [failed(1), failed(0), failed(1)], (0, 1, 2)),
        # The slot counts: rank 1 is slot 1 at first, and slot 2 without that.
        (1, SMALL, (0, 2)),
        (1, [*SMALL, failed(2, (0, 2))], (0,)),
        (2, [*SMALL, failed(2, (0, 2))], (0, 2)),
        # A later save between two failures keeps the slot.
        (1, [failed(1, saved_step=50), failed(1, saved_step=100)], (0, 1, 2)),
        (1, [failed(1), failed(1, saved_step=50)], (0, 1, 2)),
        (1, [failed(1, saved_step=50), failed(1, saved_step=50)], (0, 2)),
        (1, [failed(1, saved_step=50), failed(1)], (0, 2)),
    ],
)
def test_a_slot_that_stays_dead_is_left_out(min_size, attempts, slots):
    assert Restarts(9, min_size=min_size).next_slots(attempts) == slots


ON_B = failed(1, (0, 1))
ON_C = failed(2, (0, 2))
NO_B = Attempt(RunResult((), "hosts", "No b.", unusable=("b",)), (0, 1))
FOUR = (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("hosts", "min_size", "attempts", "slots"),
    [
        ("abc", None, [ON_B], (0, 1)),
        ("abc", None, [ON_B, ON_B], (0, 2)),
        ("abc", None, [failed(0, (0, 1))] * 2, (1, 2)),
        ("abc", None, [failed(1, (0, 1), 5), failed(1, (0, 1), 9)], (0, 1)),
        ("ab", None, [ON_B, ON_B], (0, 1)),
        ("ab", 1, [ON_B, ON_B], (0,)),
        # No spare host is left.
        ("abc", None, [ON_B, ON_B, ON_C, ON_C], (0, 2)),
        ("abc", 1, [ON_B, ON_B, ON_C, ON_C], (0,)),
        # A host that does not answer is replaced at once.
        ("abc", None, [ON_B, NO_B], (0, 2)),
        ("ab", None, [ON_B, NO_B], (0, 1)),
        ("ab", 1, [ON_B, NO_B], (0,)),
        ("ab", None, [ON_B, NO_B, ON_B], (0, 1)),
        ("ab", 1, [ON_B, NO_B, ON_B], (0,)),
        # One slot alone, or slot after slot of a host.
        ("aabbcc", None, [failed(2, FOUR)] * 2, (0, 1, 3, 4)),
        ("aabbcc", None, [failed(2, FOUR), failed(3, FOUR)], (0, 1, 4, 5)),
        ("aabbcc", None, [failed(1, FOUR), failed(2, FOUR)], FOUR),
        ("aabb", 2, [failed(2, FOUR), failed(3, FOUR)], (0, 1)),
        ("aabb", 3, [failed(2, FOUR), failed(3, FOUR)], FOUR),
        ("aaaa", 1, [failed(2, FOUR), failed(3, FOUR)], FOUR),
        ("aaaa", 1, [failed(2, FOUR)] * 2, (0, 1, 3)),
        # A spare slot of a host that has failed is none.
        ("abb", None, [ON_B, NO_B], (0, 1)),
    ],
)
def test_spare_slots_take_the_place_of_a_host_that_stays_dead(
    hosts, min_size, attempts, slots
):
    restarts = Restarts(9, min_size=min_size, hosts=tuple(hosts))

    assert restarts.next_slots(attempts) == slots


FAILED = "rank {} failed with exit code 3 after 1.0 s."
SLOT_2 = " Slot 2 on b stays dead and is left out: it goes on with 4 processes."


@pytest.mark.parametrize(
    ("hosts", "attempts", "slots", "line"),
    [
        ("", [failed(1), failed(0, (0, 1))], (0, 1), FAILED.format(0)),
        (
            "",
            [failed(1, (0, 2, 1))] * 2,
            (0, 2),
            FAILED.format(2)
            + " Slot 1 stays dead and is left out: it goes on with 2 processes.",
        ),
        (
            "",
            [failed(1, (2, 1))] * 2,
            (2,),
            FAILED.format(1)
            + " Slot 1 stays dead and is left out: it goes on with 1 process.",
        ),
        (
            "aabbcc",
            [failed(2, FOUR)] * 2,
            (0, 1, 4, 5),
            FAILED.format(2) + " Host b stays dead and is left out: it goes on with 4 "
            "processes. In its place: host c.",
        ),
        (
            "aabbcc",
            [failed(2, FOUR)] * 2,
            (0, 1, 3, 4),
            FAILED.format(2) + SLOT_2 + " In its place: host c.",
        ),
        (
            "abc",
            [ON_B, NO_B],
            (0, 2),
            "No b. Host b stays dead and is left out: it goes on with 2 processes. "
            "In its place: host c.",
        ),
    ],
)
def test_a_restart_is_announced_with_its_cause(hosts, attempts, slots, line):
    restarts = Restarts(3, min_size=1, hosts=tuple(hosts))

    assert restarts.notice(attempts, slots) == f"restart 2 of 3: {line}"


@pytest.mark.parametrize(
    ("saved_steps", "seconds"),
    [
        ([None], 0),
        ([None, None], 1),
        ([None, 0, None], 2),
        ([None] * 2000, 60),
        ([10, 20], 0),
        ([10, 20, 20], 1),
        ([10, 20, 20, None, 30], 0),
    ],
)
def test_what_fails_again_without_progress_waits_longer(saved_steps, seconds):
    attempts = [failed(1, saved_step=step) for step in saved_steps]

    assert Restarts(99).pause_seconds(attempts) == seconds


def test_restarts_are_reported_in_the_end():
    attempts = [failed(1, saved_step=50), failed(2, (0, 2)), failed(0)]

    assert Restarts(3).report(attempts) == [
        "restart 1 of 3: rank 1 failed with exit code 3 after 1.0 s. Slot 1 stays dead "
        "and is left out: it goes on with 2 processes. The last saved step was 50.",
        "restart 2 of 3: rank 1 failed with exit code 3 after 1.0 s. In its place: "
        "slot 1.",
        "2 of 3 restarts used.",
    ]
    assert Restarts(3).report(attempts[:1]) == []
