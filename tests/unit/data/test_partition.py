import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.data.partition import check_batch, check_examples, part_of, pieces_of


@given(
    st.integers(1, 9).flatmap(
        lambda size: st.tuples(
            st.integers(size, 500), st.integers(size, 90), st.just(size)
        )
    )
)
def test_parts_are_all_examples_in_as_many_steps_as_one_process_has(numbers):
    examples, batch, size = numbers
    parts = [part_of(examples, batch, rank, size) for rank in range(size)]

    assert [each for part in parts for each in part] == list(range(examples))
    assert min(map(len, parts)) > 0
    shares = [len(part_of(batch, batch, rank, size)) for rank in range(size)]
    steps = [-(-len(p) // own) for p, own in zip(parts, shares, strict=True)]
    assert max(steps) == -(-examples // batch)
    assert min(steps) >= examples // batch


@given(st.lists(st.integers(0, 20), min_size=1), st.integers(1, 7), st.data())
def test_pieces_are_all_examples_of_a_part_in_order(lengths, most, data):
    total = sum(lengths)
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    firsts = [sum(lengths[:number]) for number in range(len(lengths))]

    pieces = pieces_of(range(start, stop), lengths, most)

    found = [firsts[n] + first + i for n, first, count in pieces for i in range(count)]
    assert found == list(range(start, stop))
    assert all(1 <= count <= most for *_, count in pieces)
    assert all(first + count <= lengths[number] for number, first, count in pieces)


def test_a_batch_with_too_few_examples_for_all_ranks_is_refused():
    check_batch(3, 3)
    with pytest.raises(
        ValueError,
        match=r"global_batch_size must be at least the number of ranks\. Received: "
        r"global_batch_size=2 for 3 ranks\. It is what all ranks together take in a "
        r"step: multiply what one takes by tfdist\.size\(\)\.",
    ):
        check_batch(2, 3)


def test_too_few_examples_for_all_ranks_are_refused():
    check_examples(3, 3, "a list")
    with pytest.raises(
        ValueError,
        match=r"Every rank must get at least one example\. Received: 2 examples for 3 "
        r"ranks, from a list\. Start fewer processes, or see whether all files are "
        r"there\.",
    ):
        check_examples(2, 3, "a list")
