import pytest

from tfdist.cluster.place import Place


def test_without_arguments_it_is_a_process_alone():
    assert Place() == Place(0, 1, 0, 1, "")
    assert Place().is_chief


def test_only_rank_zero_is_the_chief():
    assert Place(0, 2, 0, 2).is_chief
    assert not Place(2, 4, 0, 2).is_chief


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_that_nobody_has_is_refused(rank):
    message = (
        "^rank must be from 0 to size - 1. "
        f"Received: rank={rank}, size=2, local_rank=0, local_size=1 from mpirun. Start"
    )
    with pytest.raises(ValueError, match=message):
        Place(rank, 2, launcher="mpirun")


def test_a_job_of_nobody_is_refused():
    with pytest.raises(ValueError, match="^rank must be from 0 to size - 1. .*size=0"):
        Place(0, 0)


@pytest.mark.parametrize("local_rank", [-1, 1])
def test_a_local_rank_that_nobody_has_is_refused(local_rank):
    message = (
        "^local_rank must be from 0 to local_size - 1. "
        f"Received: rank=0, size=2, local_rank={local_rank}, local_size=1. Start all"
    )
    with pytest.raises(ValueError, match=message):
        Place(0, 2, local_rank=local_rank)


def test_more_on_one_host_than_in_all_are_refused():
    message = "^local_size must not be greater than size, .*local_size=3. Start all"
    with pytest.raises(ValueError, match=message):
        Place(0, 2, local_rank=0, local_size=3)
