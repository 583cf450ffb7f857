import random
from types import SimpleNamespace

import pytest

from tfdist.strategies.parameter_server.pipelines import (
    ABSENT_SECONDS,
    BatchRange,
    Pipelines,
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


def test_a_pipeline_of_unknown_length_ends_when_a_worker_finds_its_end(clock):
    pipelines = pipelines_of([None, None], clock)
    part = pipelines.take(0, 3)
    pipelines.end(part.pipeline)

    assert pipelines.take(0, 1) is None
    assert not pipelines.are_over
    pipelines.end(pipelines.take(1, 1).pipeline)
    assert pipelines.are_over


# Lost workers.


def wait_in_vain(pipelines, clock):
    """Let worker 0 wait for another one."""
    assert pipelines.take(0, 1) is None
    clock.now += ABSENT_SECONDS + 0.1


def test_a_worker_without_data_waits_for_workers_that_are_busy(clock):
    pipelines = pipelines_of([1, 5], clock)
    pipelines.take(0, 1)
    with pipelines.at_work(1):
        clock.now += 100 * ABSENT_SECONDS
        assert pipelines.take(0, 1) is None
    clock.now += 100 * ABSENT_SECONDS
    assert pipelines.take(0, 1) is None
    clock.now += ABSENT_SECONDS
    assert pipelines.take(0, 1) is None


@pytest.mark.parametrize("silent", [(), (1,)])
def test_a_worker_without_data_continues_for_a_lost_one(clock, silent):
    pipelines = pipelines_of([1, 5, 1], clock)
    pipelines.take(0, 1)
    pipelines.take(1, 1)
    pipelines.take(2, 1)
    if not silent:
        wait_in_vain(pipelines, clock)

    assert pipelines.take(0, 2, silent) == BatchRange(1, 1, 2)
    with pipelines.at_work(0):
        assert pipelines.take(2, 1) is None
        assert pipelines.take(0, 1) == BatchRange(1, 3, 1)


def test_a_worker_that_returns_takes_its_pipeline_back(clock):
    pipelines = pipelines_of([1, 9], clock)
    pipelines.take(0, 1)
    wait_in_vain(pipelines, clock)
    assert pipelines.take(0, 2) == BatchRange(1, 0, 2)

    assert pipelines.take(1, 2) == BatchRange(1, 2, 2)
    with pipelines.at_work(1):
        pass
    assert pipelines.take(0, 1) is None


@pytest.mark.parametrize("seed", range(5))
def test_each_batch_is_assigned_once(clock, seed):
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
            pipelines.end(part.pipeline)

    assert sorted(found) == [(i, n) for i in range(3) for n in range(lengths[i])]
