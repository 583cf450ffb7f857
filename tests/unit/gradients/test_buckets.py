"""Plans of buckets and groups, computed by hand."""

import re

import pytest

from tfdist.gradients import check_bucket_bytes, plan_buckets
from tfdist.gradients.buckets import (
    ALONE_BYTES,
    FIRST_BUCKET_BYTES,
    add_to_buckets,
    check_groups,
    plan_groups,
)

F = "float32"


@pytest.mark.parametrize(
    ("sizes", "bucket_bytes", "first", "buckets"),
    [
        ([], 8, 4, []),
        ([4], 8, 4, [[0]]),
        ([4, 4, 4, 4], 8, 4, [[3], [2, 1], [0]]),
        ([4, 4, 4, 4], 100, 100, [[3, 2, 1, 0]]),
        ([4, 4, 4], 0, 100, [[2], [1], [0]]),
        ([100, 1, 1, 100], 10, 10, [[3], [2, 1, 0]]),
        ([4, 4, 4], 1, 100, [[2], [1], [0]]),
        ([0, 0, 4, 0], 4, 4, [[3, 2], [1, 0]]),
        ([0, 0], 0, 0, [[1], [0]]),
    ],
)
def test_the_last_tensors_come_first_and_full_buckets_are_closed(
    sizes, bucket_bytes, first, buckets
):
    found = plan_buckets(sizes, [F] * len(sizes), bucket_bytes, first)

    assert found == buckets


def test_kinds_are_kept_apart_and_each_has_a_small_first_bucket():
    kinds = ["a", "b", "a", "b", "a", "b"]

    assert plan_buckets([4] * 6, kinds, 8, 4) == [[5], [4], [3, 1], [2, 0]]


def test_every_tensor_is_in_one_bucket_of_its_kind():
    sizes = [(i * 37) % 11 + 1 for i in range(50)]
    kinds = [i % 3 for i in range(50)]

    buckets = plan_buckets(sizes, kinds, 20, 5)

    assert sorted(i for bucket in buckets for i in bucket) == list(range(50))
    assert all(len({kinds[i] for i in bucket}) == 1 for bucket in buckets)
    assert all(bucket == sorted(bucket, reverse=True) for bucket in buckets)


def test_a_bucket_is_full_once_it_holds_the_limit_and_not_before():
    sizes = [3] * 20
    for bucket in plan_buckets(sizes, [F] * 20, 10, 10)[:-1]:
        total = sum(sizes[i] for i in bucket)
        assert total >= 10 > total - sizes[bucket[-1]]


def test_the_first_bucket_holds_one_mebibyte():
    size = 2**18
    buckets = plan_buckets([size] * 20, [F] * 20, 8 * size)

    assert FIRST_BUCKET_BYTES == 2**20
    assert [len(bucket) for bucket in buckets] == [4, 8, 8]


@pytest.mark.parametrize(
    ("sizes", "buckets"),
    [
        ([ALONE_BYTES], [[0]]),
        ([ALONE_BYTES, 10 * ALONE_BYTES], [[1], [0]]),
        ([ALONE_BYTES - 1, 4], [[1, 0]]),
        # The small ones around it still travel together, from the last of them on.
        ([4, ALONE_BYTES, 4], [[2, 0], [1]]),
        ([4, 4, ALONE_BYTES], [[2], [1, 0]]),
        ([ALONE_BYTES, 4, 4], [[2, 1], [0]]),
    ],
)
def test_a_large_tensor_travels_by_itself(sizes, buckets):
    limit = 100 * ALONE_BYTES

    assert plan_buckets(sizes, [F] * len(sizes), limit, limit) == buckets


def test_a_large_tensor_is_not_the_small_first_bucket():
    sizes = [4, 4, 4, ALONE_BYTES]

    assert plan_buckets(sizes, [F] * 4, 8, 4) == [[3], [2], [1, 0]]


def test_a_large_tensor_leaves_the_buckets_of_every_kind_open():
    sizes = [4, 4, ALONE_BYTES, 4, 4]
    kinds = ["a", "b", "a", "a", "b"]

    assert plan_buckets(sizes, kinds, 100, 100) == [[4, 1], [3, 0], [2]]


def test_where_each_travels_by_itself_size_does_not_matter():
    sizes = [4, ALONE_BYTES, 4]

    assert plan_buckets(sizes, [F] * 3, 0) == [[2], [1], [0]]


@pytest.mark.parametrize(
    "check", [check_bucket_bytes, lambda n: plan_buckets([], [], n)]
)
def test_a_negative_size_is_refused(check):
    with pytest.raises(
        ValueError,
        match=r"bucket_bytes must not be negative\. Received: bucket_bytes=-1\. Use 0 "
        r"to send each gradient by itself\.",
    ):
        check(-1)


@pytest.mark.parametrize(
    ("buckets", "sizes", "kinds", "full"),
    [
        ([], [], "", []),
        ([[1], [0]], [4, 4], "aa", [[1], [0]]),
        # The smallest bucket of the kind takes it, the earlier of two equal ones.
        ([[2, 1], [0]], [4, 4, 4, 1], "aaaa", [[2, 1], [0, 3]]),
        ([[0], [1]], [4, 4, 1], "aaa", [[0, 2], [1]]),
        # What has joined counts, too.
        ([[0], [1]], [4, 5, 3, 1], "aaaa", [[0, 2], [1, 3]]),
        ([[1], [0]], [1, 9, 1], "aba", [[1], [0, 2]]),
        # Where no bucket has the kind, one new one goes first.
        ([[0]], [4, 1, 1], "abb", [[1, 2], [0]]),
        ([], [1, 1, 1], "aba", [[1], [0, 2]]),
    ],
)
def test_what_comes_beside_joins_the_smallest_bucket(buckets, sizes, kinds, full):
    before = [list(bucket) for bucket in buckets]

    assert add_to_buckets(buckets, sizes, kinds) == full
    assert buckets == before


PATHS = ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("groups", "positions", "planned"),
    [
        # Each alone, those of the last layers first.
        (None, [0, 1, 2], [[2], [1], [0]]),
        (None, [], []),
        # Neighbours.
        (1, [0, 1, 2], [[2, 1, 0]]),
        (2, [0, 1, 2, 3], [[3, 2], [1, 0]]),
        (2, [0, 1, 2], [[2], [1, 0]]),
        (3, [0, 1, 2, 3, 4], [[4], [3, 2], [1, 0]]),
        # Gradients between them are sparse, or missing.
        (2, [0, 3, 4], [[4], [3, 0]]),
        # No group is empty.
        (4, [0, 1], [[1], [0]]),
        (4, [2], [[2]]),
        (2, [], []),
        # By path; a group sets out in the place of its last layer.
        ([["a", "b"], ["d", "e"]], [0, 1, 2, 3, 4], [[4, 3], [2], [1, 0]]),
        ([["a", "e"]], [0, 1, 2, 3, 4], [[4, 0], [3], [2], [1]]),
        ([["e", "a"], ["b"]], [0, 1, 4], [[4, 0], [1]]),
        ((("a", "b"),), [1, 2], [[2], [1]]),
        ([], [0, 1], [[1], [0]]),
        ([[]], [0, 1], [[1], [0]]),
    ],
)
def test_who_travels_with_whom(groups, positions, planned):
    assert plan_groups(groups, PATHS, positions) == planned


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("dense/kernal", "Did you mean 'dense/kernel'?"),
        ("xyz", "There are: ['dense/kernel', 'dense/bias']."),
    ],
)
def test_a_path_that_no_variable_has_is_refused(path, advice):
    text = f"groups must name variables that are trained. Received: '{path}'. {advice}"
    with pytest.raises(ValueError, match=re.escape(text)):
        plan_groups([["dense/bias"], [path]], ["dense/kernel", "dense/bias"], [0])


@pytest.mark.parametrize(
    "groups", [None, 1, 7, [], [["a"]], (("a", "b"), ("c",)), [["a"], []]]
)
def test_possible_groups_are_accepted(groups):
    assert check_groups(groups) is None


@pytest.mark.parametrize("groups", [0, -1, True])
def test_a_number_of_groups_is_positive(groups):
    text = (
        f"groups must be at least 1. Received: groups={groups}. Leave it out to let "
        "Horovod fuse what waits at the same time."
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        check_groups(groups)


@pytest.mark.parametrize(
    "groups", [2.5, "dense/kernel", ["dense/kernel"], [1, 2], [[1]], [None]]
)
def test_groups_are_a_number_or_lists_of_paths(groups):
    text = (
        "groups must be a number, or lists of paths of variables. Received: "
        f"groups={groups!r}. Write paths as they stand in variable.path"
    )
    with pytest.raises(TypeError, match=re.escape(text)):
        check_groups(groups)


@pytest.mark.parametrize("groups", [[["a", "b"], ["c", "a"]], [["a", "a"]]])
def test_a_variable_is_in_one_group(groups):
    text = (
        "groups must name each variable once. Received twice: ['a']. Leave it in one "
        "group."
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        check_groups(groups)
