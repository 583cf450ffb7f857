import math
import random
from types import SimpleNamespace

import pytest

from tfdist.strategies.parameter_server.pipelines import (
    ABSENT_SECONDS,
    Part,
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

    assert parts == [Part(0, 0, 1), Part(1, 0, 2), Part(0, 1, 2), Part(0, 3, 1)]
    assert pipelines.are_over


@pytest.mark.parametrize(
    ("lengths", "known", "is_over"),
    [
        ([0, 0], True, True),
        ([0, 1], True, False),
        ([math.inf, math.inf], True, False),
        ([None, None], False, False),
    ],
)
def test_some_lengths_are_known(clock, lengths, known, is_over):
    pipelines = pipelines_of(lengths, clock)

    assert pipelines.has_known_length(0) is known
    assert pipelines.are_over is is_over
    if not is_over:
        assert pipelines.take(1, 3).steps == min(3, lengths[1] or 3)


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

    assert pipelines.take(0, 2, silent) == Part(1, 1, 2)
    # It is there, and so nobody else reads this pipeline.
    with pipelines.at_work(0):
        assert pipelines.take(2, 1) is None
        assert pipelines.take(0, 1) == Part(1, 3, 1)


def test_one_that_comes_back_takes_its_pipeline_back(clock):
    pipelines = pipelines_of([1, 9], clock)
    pipelines.take(0, 1)
    wait_in_vain(pipelines, clock)
    assert pipelines.take(0, 2) == Part(1, 0, 2)

    assert pipelines.take(1, 2) == Part(1, 2, 2)
    with pipelines.at_work(1):
        pass
    assert pipelines.take(0, 1) is None


def test_one_that_failed_is_at_work_no_more(clock):
    pipelines = pipelines_of([1, 9], clock)
    with pytest.raises(KeyError), pipelines.at_work(1):
        raise KeyError
    pipelines.take(0, 1)
    wait_in_vain(pipelines, clock)

    assert pipelines.take(0, 1) == Part(1, 0, 1)


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
