"""The steps of one process, with a turn that only notes what happens."""

import pytest

from tfdist.benchmarks.training import measure


@pytest.mark.parametrize("collective", [None, "tensorflow"])
def test_measuring_leaves_out_the_block_that_compiles(collective, turn):
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
