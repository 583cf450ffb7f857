"""Plans of buckets and groups, computed by hand."""

import pytest

from tfdist.gradients.buckets import (
    ALONE_BYTES,
    add_to_buckets,
    check_groups,
    plan_buckets,
    plan_groups,
    plan_neighbours,
)


@pytest.mark.parametrize(
    ("sizes", "kinds", "bucket_bytes", "first", "buckets"),
    [
        ([], "", 8, 4, []),
        ([4, 4, 4, 4], "aaaa", 8, 4, [[3], [2, 1], [0]]),
        ([4, 4, 4, 4], "aaaa", 100, 100, [[3, 2, 1, 0]]),
        ([4, ALONE_BYTES, 4], "aaa", 0, 100, [[2], [1], [0]]),
        ([100, 1, 1, 100], "aaaa", 10, 10, [[3], [2, 1, 0]]),
        ([0, 0, 4, 0], "aaaa", 4, 4, [[3, 2], [1, 0]]),
        # A large one is sent alone; the small ones around it still travel together.
        ([4, ALONE_BYTES, 4], "aaa", 2**30, 2**30, [[2, 0], [1]]),
        ([ALONE_BYTES - 1, 4], "aa", 2**30, 2**30, [[1, 0]]),
        ([4, 4, 4, ALONE_BYTES], "aaaa", 8, 4, [[3], [2], [1, 0]]),
        ([4, 4, ALONE_BYTES, 4, 4], "abaab", 100, 100, [[4, 1], [3, 0], [2]]),
        # The first bucket holds 1 MiB.
        ([2**19] * 5, "aaaaa", 2**30, 2**20, [[4, 3], [2, 1, 0]]),
        # Kinds are kept apart, and each has a small first bucket.
        ([4] * 6, "ababab", 8, 4, [[5], [4], [3, 1], [2, 0]]),
    ],
)
def test_the_last_tensors_come_first_and_full_buckets_are_closed(
    sizes, kinds, bucket_bytes, first, buckets
):
    assert plan_buckets(sizes, kinds, bucket_bytes, first) == buckets


def test_neighbours_of_one_kind_go_together_until_a_bucket_is_full():
    sizes = [4, ALONE_BYTES, ALONE_BYTES - 4, 4, 4]

    assert plan_neighbours(sizes, "aaaab", 2) == [[0, 1, 2], [3], [4]]
    assert plan_neighbours(sizes, "aaaaa", 1) == [[0, 1], [2, 3], [4]]
    assert plan_neighbours([], [], 2) == []


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


@pytest.mark.parametrize(
    ("groups", "count", "planned"),
    [
        # Each alone, the last layers first.
        (None, 3, [[2], [1], [0]]),
        # Neighbours.
        (1, 3, [[2, 1, 0]]),
        (3, 5, [[4], [3, 2], [1, 0]]),
        # No group is empty.
        (4, 2, [[1], [0]]),
        (2, 0, []),
        # By path; a group has the place of its last layer.
        ([["a", "b"], ["d", "e"]], 5, [[4, 3], [2], [1, 0]]),
        ((("e", "a"), ("b",)), 5, [[4, 0], [3], [2], [1]]),
        ([[], ["of another optimizer", "b"]], 2, [[1], [0]]),
    ],
)
def test_who_travels_with_whom(groups, count, planned):
    assert plan_groups(groups, "abcde"[:count], count) == planned


@pytest.mark.parametrize(
    ("groups", "error"),
    [
        (0, "groups must be a positive number, or lists of paths of variables.*Write"),
        (2.5, "groups must be a positive number"),
        (["dense/kernel"], "groups must be a positive number"),
        ([[1]], "groups must be a positive number"),
        (
            [["a", "b"], ["c", "a"]],
            r"must name each variable once\. .*\. Leave it in one",
        ),
    ],
)
def test_groups_are_a_number_or_lists_that_share_nothing(groups, error):
    with pytest.raises(ValueError, match=error):
        check_groups(groups)
