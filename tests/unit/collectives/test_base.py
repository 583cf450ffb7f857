import pytest

from tfdist.collectives import Collective, FusingCollective
from tfdist.collectives.base import REDUCTIONS, check_reduction, check_root_rank


def test_a_collective_has_eight_members():
    assert sorted(Collective.__abstractmethods__) == [
        "all_gather",
        "all_reduce",
        "barrier",
        "broadcast",
        "call",
        "exchange",
        "rank",
        "size",
    ]


def test_one_that_fuses_has_two_more():
    more = FusingCollective.__abstractmethods__ - Collective.__abstractmethods__

    assert sorted(more) == ["all_reduce_as", "check_op"]
    assert issubclass(FusingCollective, Collective)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_every_reduction_is_accepted(reduction):
    assert check_reduction(reduction) is None


@pytest.mark.parametrize("reduction", ["average", "SUM", "", None, ["sum"]])
def test_an_unknown_reduction_is_refused(reduction):
    with pytest.raises(
        ValueError,
        match=r"reduction must be one of sum, mean, min, max\. Received: "
        r"reduction=.*\. Use 'sum' to add over the ranks\.",
    ):
        check_reduction(reduction)


@pytest.mark.parametrize("root_rank", [0, 2])
def test_every_rank_may_be_the_root(root_rank):
    assert check_root_rank(root_rank, 3) is None


@pytest.mark.parametrize("root_rank", [-1, 3])
def test_a_root_that_nobody_is_is_refused(root_rank):
    with pytest.raises(
        ValueError,
        match=r"root_rank must be from 0 to 2\. Received: "
        rf"root_rank={root_rank}\. Use 0 for the chief\.",
    ):
        check_root_rank(root_rank, 3)
