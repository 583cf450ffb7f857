import random

import pytest

from tfdist.strategies.parameter_server.parts import Paces, Parts


def paces_of(*seconds):
    """Return what is known of workers that take so long."""
    paces = Paces()
    for worker, each in enumerate(seconds):
        if each is not None:
            paces.note(worker, each)
    return paces


# How long workers take.


def test_nothing_is_known_of_a_worker_before_its_first_part():
    assert paces_of(None, 2.0).of(0) is None
    assert paces_of(None, 2.0).of(1) == 2.0


def test_a_stray_part_says_nothing():
    paces = Paces()
    for seconds in (30.0, 1.0, 3.0, 2.0, 60.0):
        paces.note(0, seconds)

    assert paces.of(0) == 3.0


def test_a_worker_that_has_become_slow_is_slow_soon():
    paces = Paces()
    for seconds in (1.0, 1.0, 1.0, 1.0, 1.0, 5.0, 5.0):
        paces.note(0, seconds)
    assert paces.of(0) == 1.0
    paces.note(0, 5.0)
    assert paces.of(0) == 5.0


# Who does which part.


def test_free_workers_take_what_nobody_has_begun():
    parts = Parts(2, paces_of(1.0, 1.0, 1.0))

    assert [parts.begin(worker, 0.0) for worker in (2, 0)] == [0, 1]
    assert not parts.are_done
    parts.end(2, 0, 1.0, has_arrived=True)
    parts.end(0, 1, 1.0, has_arrived=True)
    assert parts.are_done


def test_if_all_are_alike_nothing_is_done_twice():
    """The spare one asks again when one of them is held up."""
    parts = Parts(2, paces_of(1.0, 1.1, 1.0))
    parts.begin(0, 10.0)
    parts.begin(1, 10.1)

    assert parts.begin(2, 10.0) is None
    assert parts.next_at(2) == 12.0
    assert parts.begin(2, 11.9) is None
    assert parts.begin(2, 12.0) == 0


def test_the_part_of_a_slow_worker_is_done_again_at_once():
    parts = Parts(2, paces_of(1.0, 2.0, 1.0))
    assert [parts.begin(worker, 0.0) for worker in (1, 0)] == [0, 1]

    assert parts.begin(2, 0.1) == 0
    parts.end(0, 1, 1.0, has_arrived=True)
    parts.end(2, 0, 1.1, has_arrived=True)
    assert parts.are_done


def test_the_part_that_would_be_last_is_done_again_first():
    parts = Parts(3, paces_of(2.0, 3.0, 4.0, 1.0, 1.0, 1.0))
    assert [parts.begin(worker, 0.0) for worker in (0, 2, 1)] == [0, 1, 2]

    assert [parts.begin(worker, 0.1) for worker in (3, 4, 5)] == [1, 2, 0]


def test_a_part_that_is_about_to_arrive_is_not_done_again():
    """Who has done its own would still be at it when the next batch comes."""
    parts = Parts(2, paces_of(1.0, 2.0))
    parts.begin(0, 0.0)
    parts.begin(1, 0.0)
    parts.end(0, 0, 1.0, has_arrived=True)

    assert parts.begin(0, 1.0) is None
    assert parts.next_at(0) == 4.0


def test_a_slow_worker_does_not_do_again_what_others_are_at():
    parts = Parts(2, paces_of(1.0, 1.0, 10.0))
    parts.begin(0, 0.0)
    parts.begin(1, 0.0)

    assert parts.begin(2, 0.0) is None
    assert parts.begin(2, 3.0) is None
    assert parts.next_at(2) == 12.5
    assert parts.begin(2, 12.5) == 0


def test_a_worker_of_which_nothing_is_known_may_never_arrive():
    parts = Parts(2, paces_of(1.0, None, 1.0))
    parts.begin(0, 0.0)
    parts.begin(1, 0.0)

    assert parts.begin(2, 0.0) == 1


def test_a_part_that_somebody_fast_is_at_is_not_done_a_third_time():
    parts = Parts(1, paces_of(5.0, 1.0, 1.0))
    parts.begin(0, 0.0)
    assert parts.begin(1, 0.0) == 0

    assert parts.begin(2, 0.0) is None
    assert parts.next_at(2) == 10.0


def test_nobody_does_twice_what_it_is_at():
    parts = Parts(1, paces_of(1.0))
    parts.begin(0, 0.0)

    assert parts.begin(0, 9.0) is None
    assert parts.next_at(0) is None


def test_what_was_not_done_is_begun_anew():
    parts = Parts(1, paces_of(1.0, 1.0))
    parts.begin(0, 0.0)
    assert parts.begin(1, 0.1) is None
    parts.end(0, 0, 0.2, has_arrived=False)

    assert not parts.are_done
    assert parts.begin(1, 0.3) == 0


def test_what_another_is_at_or_has_done_is_not_begun_anew():
    parts = Parts(2, paces_of(9.0, 1.0, 1.0))
    parts.begin(0, 0.0)
    parts.begin(1, 0.0)
    parts.begin(2, 0.0)
    parts.end(0, 0, 0.5, has_arrived=False)
    assert parts.begin(0, 0.5) is None
    parts.end(2, 0, 1.0, has_arrived=True)
    parts.end(1, 1, 1.0, has_arrived=False)

    assert parts.begin(0, 1.0) == 1


def test_a_late_worker_is_known_to_be_slow_afterwards():
    paces = paces_of(1.0, None)
    parts = Parts(1, paces)
    parts.begin(1, 0.0)
    parts.begin(0, 0.0)
    parts.end(0, 0, 1.0, has_arrived=True)
    assert parts.are_done
    parts.end(1, 0, 7.0, has_arrived=True)

    assert paces.of(1) == 7.0


@pytest.mark.parametrize("seed", range(10))
def test_with_one_slow_worker_a_step_takes_as_long_as_without(seed):
    """Workers that take what they take, one of them twice as long; step after step."""
    chance = random.Random(seed)
    paces, seconds = Paces(), [1.0, 1.0, 1.0]
    seconds[chance.randrange(3)] = 2.0
    free_at, now, lengths = [0.0, 0.0, 0.0], 0.0, []
    for _ in range(50):
        parts, began = Parts(2, paces), now
        ends = []
        while not parts.are_done:
            order = sorted(range(3), key=lambda w: (free_at[w], chance.random()))
            for worker in order:
                if free_at[worker] <= now:
                    part = parts.begin(worker, now)
                    if part is not None:
                        free_at[worker] = now + seconds[worker]
                        ends.append((free_at[worker], worker, part))
            ends.sort()
            now, worker, part = ends.pop(0)
            parts.end(worker, part, now, has_arrived=True)
        for end, worker, _ in ends:
            paces.note(worker, end - began)
        lengths.append(now - began)

    assert lengths[5:] == pytest.approx([1.0] * 45)
