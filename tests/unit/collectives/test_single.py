import pytest

from tfdist.collectives import Collective, SingleCollective


@pytest.fixture
def single():
    return SingleCollective()


def test_it_is_rank_zero_of_one(single):
    assert isinstance(single, Collective)
    assert (single.rank, single.size) == (0, 1)


@pytest.mark.parametrize("reduction", ["sum", "mean", "min", "max"])
def test_a_reduction_gives_back_the_very_tensors(single, reduction):
    tensors = (object(), object())

    assert single.all_reduce(tensors, reduction, name="x") == list(tensors)


def test_rows_are_given_back(single):
    rows = object()

    assert single.all_gather(rows, name="x") is rows


def test_a_broadcast_gives_back_the_very_tensors(single):
    tensors = (object(), object())

    assert single.broadcast(tensors, name="x") == list(tensors)


@pytest.mark.parametrize("joint", [True, False])
def test_an_exchange_is_with_itself(single, joint):
    assert single.exchange("x", {"a": 1}, joint=joint) == [{"a": 1}]


def test_nobody_is_waited_for(single):
    assert single.barrier() is None
    assert single.barrier("end") is None


def test_a_call_lets_errors_through(single):
    with pytest.raises(KeyError), single.call("step"):
        raise KeyError


def test_the_reduction_is_checked(single):
    with pytest.raises(ValueError, match="reduction must be one of"):
        single.all_reduce([1.0], "average", name="x")


def test_the_root_is_checked(single):
    with pytest.raises(ValueError, match=r"root_rank must be from 0 to 0\. Received: "):
        single.broadcast([1.0], root_rank=1, name="x")
