"""What BroadcastVariables takes; that ranks get them is in tests/distributed."""

import pytest

from tfdist.callbacks import BroadcastVariables


def test_alone_it_changes_nothing(model, fit):
    callback = BroadcastVariables()
    fit(callback)
    fit(callback)

    # Eight steps of 0.1.
    assert model.get_weights()[0].item() == pytest.approx(-0.8)


def test_alone_there_is_no_other_rank(fit):
    with pytest.raises(
        ValueError,
        match=r"^root_rank must be from 0 to 0\. Received: root_rank=1\. Use 0 for the",
    ):
        fit(BroadcastVariables(root_rank=1))


@pytest.mark.parametrize("root_rank", [1.0, True, "0", None, -1])
def test_a_rank_is_a_whole_number(root_rank):
    with pytest.raises(
        ValueError,
        match=r"^root_rank must be a whole number that is not negative\. "
        rf"Received: root_rank={root_rank!r}\. Use 0 for the chief\.$",
    ):
        BroadcastVariables(root_rank)
