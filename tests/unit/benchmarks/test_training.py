"""The steps of one process, with a turn that only notes what happens."""

import pytest

from tfdist.benchmarks.training import measure


class NotedTurn:
    """Always has the turn."""

    def __init__(self):
        self.events = []

    def take(self):
        self.events.append("take")

    def pass_on(self):
        self.events.append("pass on")


@pytest.mark.parametrize("collective", [None, "tensorflow"])
def test_measuring_leaves_out_the_block_that_compiles(collective):
    turn = NotedTurn()

    blocks = measure(
        turn,
        collective=collective,
        batch_size=4,
        steps=2,
        repeats=3,
        compression="none",
    )

    assert [len(block) for block in blocks] == [1, 1, 1]
    assert min(min(block) for block in blocks) > 0
    assert turn.events == ["take", "pass on"] * 4
