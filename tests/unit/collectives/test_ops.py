import pytest

from tfdist.collectives.ops import rings

MEBIBYTE = 2**20


@pytest.mark.parametrize(
    ("size_bytes", "ranks", "wanted"),
    [
        (1, 2, 1),
        (MEBIBYTE, 2, 1),
        (8 * MEBIBYTE, 2, 4),
        (8 * MEBIBYTE, 8, 1),
        (64 * MEBIBYTE, 8, 8),
        (2**30, 2, 16),
        (2**40, 2, 16),
    ],
)
def test_a_tensor_goes_round_in_chunks_of_about_a_mebibyte(size_bytes, ranks, wanted):
    assert rings(size_bytes, ranks) == wanted


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_larger_tensors_never_take_fewer_rings(ranks):
    found = [rings(2**power, ranks) for power in range(35)]

    assert found == sorted(found)
    assert (found[0], found[-1]) == (1, 16)
