import random

import pytest

from tfdist.strategies.parameter_server.worker_input import BatchRange, Pipelines


def test_a_worker_without_data_continues_for_an_absent_one():
    pipelines = Pipelines([1, 9, 1])
    for worker in range(3):
        pipelines.take(worker, 1)

    assert pipelines.take(0, 2) is None
    assert pipelines.take(0, 2, {1}) == BatchRange(1, 1, 2)
    # The pipeline has a reader again, until the absent worker returns.
    assert pipelines.take(2, 1, {1}) is None
    assert pipelines.take(0, 1, {1}) == BatchRange(1, 3, 1)
    assert pipelines.take(1, 2) == BatchRange(1, 4, 2)
    assert pipelines.take(0, 1) is None


@pytest.mark.parametrize("seed", range(5))
def test_each_batch_is_assigned_once(seed):
    draw = random.Random(seed)
    lengths = [draw.randrange(20) for _ in range(3)]
    pipelines = Pipelines(lengths if seed % 2 else [None] * 3)
    found = []
    while not pipelines.are_over:
        absent = {draw.randrange(3)} if draw.random() < 0.3 else ()
        part = pipelines.take(draw.randrange(3), draw.randrange(1, 4), absent)
        if part is None:
            continue
        made = max(0, min(part.steps, lengths[part.pipeline] - part.first))
        found += [(part.pipeline, part.first + i) for i in range(made)]
        if made < part.steps:
            pipelines.end(part.pipeline)

    assert sorted(found) == [(i, n) for i in range(3) for n in range(lengths[i])]
