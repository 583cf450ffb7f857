import random

import pytest

from tfdist.strategies.parameter_server.consistency import (
    Order,
    check_backup_workers,
    check_consistency,
)


def test_without_a_limit_steps_begin_at_once_and_are_applied_as_they_arrive():
    order = Order(None)
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
    order = Order(4)
    for steps in (1, 2, 1):
        order.begin(steps)

    assert order.arrived(3, 1) == []
    assert order.arrived(1, 2) == []
    assert order.applied == 0
    assert order.arrived(0, 1) == [0, 1, 3]
    assert order.applied == 4


@pytest.mark.parametrize("max_staleness", [None, 4])
def test_steps_may_come_to_nothing(max_staleness):
    order = Order(max_staleness)
    for steps in (1, 3, 1):
        order.begin(steps)
    order.arrived(4, 1, 0)
    order.arrived(1, 3, 2)

    assert (order.begun, order.void, order.steps) == (5, 2, 3)
    order.arrived(0, 1, 1)
    # Nothing waits for what will never be applied.
    assert order.applied == 5
    assert order.may_begin(1)


def test_what_comes_to_nothing_holds_up_nothing():
    order = Order(2)
    for _ in range(3):
        order.begin(1)

    assert order.arrived(1, 1, 0) == []
    assert order.arrived(2, 1) == []
    assert order.arrived(0, 1) == [0, 1, 2]
    assert order.steps == 2


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
    order = Order(max_staleness)
    order.begin(begun)

    assert order.may_begin(steps) is expected


def test_one_step_after_the_other_begins_when_the_last_is_applied():
    order = Order(0)
    for number in range(3):
        assert order.may_begin(1)
        assert order.begin(1) == number
        assert not order.may_begin(1)
        assert order.arrived(number, 1) == [number]


@pytest.mark.parametrize("max_staleness", [0, 1, 2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_no_update_misses_more_than_it_may(max_staleness, seed):
    """Workers that read when they begin, and arrive in any order."""
    chance = random.Random(seed)
    order, reading, applied = Order(max_staleness), {}, 0
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


def test_steps_that_are_alone_have_the_same_number():
    assert [Order(0).number_apart(step) for step in (0, 1, 7)] == [0, 0, 0]
    assert [Order(1).number_apart(step) for step in (0, 1, 7)] == [0, 1, 7]
    assert [Order(None).number_apart(step) for step in (0, 1, 7)] == [0, 1, 7]


@pytest.mark.parametrize(
    ("consistency", "max_staleness"),
    [("async", None), ("sync", None), ("bounded", 0), ("bounded", 7)],
)
def test_these_are_consistencies(consistency, max_staleness):
    assert check_consistency(consistency, max_staleness) is None


def test_another_consistency_is_refused():
    with pytest.raises(
        ValueError,
        match=r"consistency must be one of async, bounded, sync\. Received: "
        r"consistency='eventual'\. Use 'async' for the highest speed, 'sync'",
    ):
        check_consistency("eventual", None)


@pytest.mark.parametrize("consistency", ["async", "sync"])
def test_a_limit_that_would_be_ignored_is_refused(consistency):
    with pytest.raises(
        ValueError,
        match=r"max_staleness is for consistency='bounded'\. Received: max_staleness=2 "
        rf"with consistency='{consistency}'\. Leave it out, or use",
    ):
        check_consistency(consistency, 2)


@pytest.mark.parametrize("max_staleness", [None, -1, 1.5, True, "3"])
def test_a_bound_must_be_a_number(max_staleness):
    with pytest.raises(
        ValueError,
        match=r"consistency='bounded' needs max_staleness, a whole number of updates "
        rf"from 0\. Received: max_staleness={max_staleness!r}\. Give how many",
    ):
        check_consistency("bounded", max_staleness)


@pytest.mark.parametrize(
    ("backup_workers", "consistency", "workers"),
    [(0, "async", 1), (0, "sync", 1), (1, "sync", 2), (2, "sync", 3)],
)
def test_so_many_backup_workers_there_may_be(backup_workers, consistency, workers):
    assert check_backup_workers(backup_workers, consistency, workers) is None


@pytest.mark.parametrize("backup_workers", [-1, 3, 1.0, True, None])
def test_somebody_must_be_left_to_work(backup_workers):
    with pytest.raises(
        ValueError,
        match=r"backup_workers must be a whole number from 0, and less than there are "
        rf"workers\. Received: backup_workers={backup_workers!r} with 3 workers\. Give "
        "how many slow workers",
    ):
        check_backup_workers(backup_workers, "sync", 3)


@pytest.mark.parametrize("consistency", ["async", "bounded"])
def test_backup_workers_where_nobody_waits_are_refused(consistency):
    with pytest.raises(
        ValueError,
        match=r"backup_workers is for consistency='sync'\. Received: backup_workers=1 "
        rf"with consistency='{consistency}', where no worker waits for another\. Leave",
    ):
        check_backup_workers(1, consistency, 3)
