import random
from types import SimpleNamespace

import pytest

from tfdist.strategies.parameter_server.schedule import (
    ABSENT_SECONDS,
    BatchRange,
    Paces,
    Pipelines,
    Slices,
    UpdateOrder,
)


@pytest.fixture
def clock():
    return SimpleNamespace(now=100.0)


def pipelines_of(lengths, clock):
    return Pipelines(lengths, lambda: clock.now)


def test_each_worker_reads_its_own_pipeline_in_order(clock):
    pipelines = pipelines_of([4, 2], clock)
    parts = [pipelines.take(*one) for one in ((0, 1), (1, 2), (0, 2), (0, 9))]

    assert parts == [
        BatchRange(0, 0, 1),
        BatchRange(1, 0, 2),
        BatchRange(0, 1, 2),
        BatchRange(0, 3, 1),
    ]
    assert pipelines.are_over


def test_a_pipeline_of_unknown_length_ends_where_somebody_finds_its_end(clock):
    pipelines = pipelines_of([None, None], clock)
    part = pipelines.take(0, 3)
    pipelines.end(part, 1)

    assert pipelines.take(0, 1) is None
    assert not pipelines.are_over
    pipelines.end(pipelines.take(1, 1), 0)
    assert pipelines.are_over


def test_a_pipeline_that_ends_too_early_is_an_error(clock):
    pipelines = pipelines_of([5], clock)
    pipelines.take(0, 2)

    with pytest.raises(RuntimeError, match="5 batches said, and an end after 3, for"):
        pipelines.end(pipelines.take(0, 2), 1)


# Workers that are not there.


def wait_in_vain(pipelines, clock):
    """Let worker 0 wait for another one."""
    assert pipelines.take(0, 1) is None
    clock.now += ABSENT_SECONDS + 0.1


def test_who_has_ended_waits_for_those_who_are_there(clock):
    pipelines = pipelines_of([1, 5], clock)
    pipelines.take(0, 1)
    with pipelines.at_work(1):
        # However long it takes.
        clock.now += 100 * ABSENT_SECONDS
        assert pipelines.take(0, 1) is None
    # However long nobody has asked for work.
    clock.now += 100 * ABSENT_SECONDS
    assert pipelines.take(0, 1) is None
    clock.now += ABSENT_SECONDS
    assert pipelines.take(0, 1) is None


@pytest.mark.parametrize("silent", [(), (1,)])
def test_who_has_ended_goes_on_for_one_that_is_not_there(clock, silent):
    pipelines = pipelines_of([1, 5, 1], clock)
    pipelines.take(0, 1)
    pipelines.take(1, 1)
    pipelines.take(2, 1)
    if not silent:
        wait_in_vain(pipelines, clock)

    assert pipelines.take(0, 2, silent) == BatchRange(1, 1, 2)
    # It is there, and so nobody else reads this pipeline.
    with pipelines.at_work(0):
        assert pipelines.take(2, 1) is None
        assert pipelines.take(0, 1) == BatchRange(1, 3, 1)


def test_one_that_comes_back_takes_its_pipeline_back(clock):
    pipelines = pipelines_of([1, 9], clock)
    pipelines.take(0, 1)
    wait_in_vain(pipelines, clock)
    assert pipelines.take(0, 2) == BatchRange(1, 0, 2)

    assert pipelines.take(1, 2) == BatchRange(1, 2, 2)
    with pipelines.at_work(1):
        pass
    assert pipelines.take(0, 1) is None


@pytest.mark.parametrize("seed", range(20))
def test_whoever_takes_each_batch_is_given_once(clock, seed):
    draw = random.Random(seed)
    lengths = [draw.randrange(20) for _ in range(3)]
    is_known = draw.random() < 0.5
    pipelines = pipelines_of(lengths if is_known else [None] * 3, clock)
    found = []
    while not pipelines.are_over:
        clock.now += draw.choice([0.0, 0.0, 2 * ABSENT_SECONDS])
        part = pipelines.take(draw.randrange(3), draw.randrange(1, 4))
        if part is None:
            continue
        made = max(0, min(part.steps, lengths[part.pipeline] - part.first))
        found += [(part.pipeline, part.first + i) for i in range(made)]
        if made < part.steps:
            pipelines.end(part, made)

    assert sorted(found) == [(i, n) for i in range(3) for n in range(lengths[i])]


def paces_of(*seconds):
    """Return what is known of workers that take so long."""
    paces = Paces()
    for worker, each in enumerate(seconds):
        if each is not None:
            paces.note(worker, each)
    return paces


# How long workers take.


# Who does which part.


def test_free_workers_take_what_nobody_has_begun():
    parts = Slices(2, paces_of(1.0, 1.0, 1.0))

    assert [parts.begin(worker, 0.0) for worker in (2, 0)] == [0, 1]
    assert not parts.are_done
    parts.end(2, 0, 1.0, has_arrived=True)
    parts.end(0, 1, 1.0, has_arrived=True)
    assert parts.are_done


def test_if_all_are_alike_nothing_is_done_twice():
    """The spare one asks again when one of them is held up."""
    parts = Slices(2, paces_of(1.0, 1.1, 1.0))
    parts.begin(0, 10.0)
    parts.begin(1, 10.1)

    assert parts.begin(2, 10.0) is None
    assert parts.next_at(2) == 12.0
    assert parts.begin(2, 11.9) is None
    assert parts.begin(2, 12.0) == 0


def test_the_part_of_a_slow_worker_is_done_again_at_once():
    parts = Slices(2, paces_of(1.0, 2.0, 1.0))
    assert [parts.begin(worker, 0.0) for worker in (1, 0)] == [0, 1]

    assert parts.begin(2, 0.1) == 0
    parts.end(0, 1, 1.0, has_arrived=True)
    parts.end(2, 0, 1.1, has_arrived=True)
    assert parts.are_done


def test_a_part_that_is_about_to_arrive_is_not_done_again():
    """Who has done its own would still be at it when the next batch comes."""
    parts = Slices(2, paces_of(1.0, 2.0))
    parts.begin(0, 0.0)
    parts.begin(1, 0.0)
    parts.end(0, 0, 1.0, has_arrived=True)

    assert parts.begin(0, 1.0) is None
    assert parts.next_at(0) == 4.0


def test_a_worker_of_which_nothing_is_known_may_never_arrive():
    parts = Slices(2, paces_of(1.0, None, 1.0))
    parts.begin(0, 0.0)
    parts.begin(1, 0.0)

    assert parts.begin(2, 0.0) == 1


def test_what_was_not_done_is_begun_anew():
    parts = Slices(1, paces_of(1.0, 1.0))
    parts.begin(0, 0.0)
    assert parts.begin(1, 0.1) is None
    parts.end(0, 0, 0.2, has_arrived=False)

    assert not parts.are_done
    assert parts.begin(1, 0.3) == 0


@pytest.mark.parametrize("seed", range(10))
def test_with_one_slow_worker_a_step_takes_as_long_as_without(seed):
    """Workers that take what they take, one of them twice as long; step after step."""
    chance = random.Random(seed)
    paces, seconds = Paces(), [1.0, 1.0, 1.0]
    seconds[chance.randrange(3)] = 2.0
    free_at, now, lengths = [0.0, 0.0, 0.0], 0.0, []
    for _ in range(50):
        parts, began = Slices(2, paces), now
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


# The order of updates.


def test_without_a_limit_steps_begin_at_once_and_are_applied_as_they_arrive():
    order = UpdateOrder(None)
    firsts = [order.begin(steps) for steps in (1, 2, 1)]

    assert firsts == [0, 1, 3]
    assert order.may_begin(1000)
    assert [order.arrived(3, 1), order.arrived(0, 1), order.arrived(1, 2)] == [
        [3],
        [0],
        [1],
    ]
    assert (order.begun, order.applied) == (4, 4)


def test_with_a_limit_what_is_early_waits_for_what_was_begun_before():
    order = UpdateOrder(4)
    for steps in (1, 2, 1):
        order.begin(steps)

    assert order.arrived(3, 1) == []
    assert order.arrived(1, 2) == []
    assert order.applied == 0
    assert order.arrived(0, 1) == [0, 1, 3]
    assert order.applied == 4


@pytest.mark.parametrize("max_staleness", [None, 4])
def test_steps_may_come_to_nothing(max_staleness):
    order = UpdateOrder(max_staleness)
    for steps in (1, 3, 1):
        order.begin(steps)
    order.arrived(4, 1, 0)
    order.arrived(1, 3, 2)

    assert (order.begun, order.void, order.steps) == (5, 2, 3)
    order.arrived(0, 1, 1)
    # Nothing waits for what will never be applied.
    assert order.applied == 5
    assert order.may_begin(1)


@pytest.mark.parametrize(
    ("max_staleness", "begun", "steps", "expected"),
    [
        (0, 0, 1, True),
        (0, 1, 1, False),
        (0, 0, 2, False),
        (1, 1, 1, True),
        (1, 2, 1, False),
        (1, 0, 2, True),
        (1, 1, 2, False),
        (3, 2, 2, True),
        (3, 2, 3, False),
    ],
)
def test_a_step_begins_when_it_cannot_miss_too_much(
    max_staleness, begun, steps, expected
):
    order = UpdateOrder(max_staleness)
    order.begin(begun)

    assert order.may_begin(steps) is expected


@pytest.mark.parametrize("max_staleness", [0, 1, 2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_no_update_misses_more_than_it_may(max_staleness, seed):
    """Workers that read when they begin, and arrive in any order."""
    chance = random.Random(seed)
    order, reading, applied = UpdateOrder(max_staleness), {}, 0
    while applied < 200:
        steps = chance.randint(1, max_staleness + 1)
        if order.may_begin(steps) and chance.random() < 0.7:
            reading[order.begin(steps)] = (steps, applied)
            continue
        if not reading:
            continue
        first = chance.choice([f for f in reading if f not in order._early])
        for ready in order.arrived(first, reading[first][0]):
            count, version = reading.pop(ready)
            assert ready == applied
            applied += count
            assert applied - 1 - version <= max_staleness
