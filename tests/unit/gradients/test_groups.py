import re

import pytest

from tfdist.gradients.buckets import check_groups, plan_groups

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
