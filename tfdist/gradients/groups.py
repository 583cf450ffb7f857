"""Which gradients travel together because the user says so: pure arithmetic."""

import difflib
from collections.abc import Hashable, Sequence

Groups = int | Sequence[Sequence[str]] | None


def check_groups(groups: Groups) -> None:
    """Refuse groups that nobody could form.

    Raises:
        TypeError: If it is neither a number nor lists of paths.
        ValueError: If the number is not positive, or a path stands in two places.
    """
    if groups is None:
        return
    if isinstance(groups, int):
        # bool is a subclass of int, yet True is no number of groups.
        if groups < 1 or isinstance(groups, bool):
            raise ValueError(
                f"groups must be at least 1. Received: groups={groups}. Leave it out "
                "to let Horovod join what is there at the same time."
            )
        return
    are_lists = _is_list(groups) and all(
        _is_list(group) and all(isinstance(path, str) for path in group)
        for group in groups
    )
    if not are_lists:
        raise TypeError(
            "groups must be a number, or lists of paths of variables. Received: "
            f"groups={groups!r}. Write paths as they stand in variable.path, for "
            "example [['dense/kernel', 'dense/bias']]."
        )
    paths = [path for group in groups for path in group]
    twice = sorted({path for path in paths if paths.count(path) > 1})
    if twice:
        raise ValueError(
            f"groups must name each variable once. Received twice: {twice}. "
            "Leave it in one group."
        )


def plan_groups(
    groups: int | Sequence[Sequence[Hashable]] | None,
    paths: Sequence[Hashable],
    positions: Sequence[int],
) -> list[list[int]]:
    """Group gradients, those of the last layers first.

    Args:
        groups: A number of groups of neighbours; or paths of variables, of which those
            that stand in no list travel alone; or None: each travels alone.
        paths: The paths of all variables, or what else stands for them, in the order
            of the layers.
        positions: Which of them have a dense gradient.

    Returns:
        Positions by group, in the order of sending.

    Raises:
        ValueError: If a group names a variable that the model does not have.

    Example:
        >>> plan_groups(2, ["a", "b", "c"], [0, 1, 2])
        [[2], [1, 0]]
        >>> plan_groups([["a", "c"]], ["a", "b", "c"], [0, 1, 2])
        [[2, 0], [1]]
    """
    backwards = list(reversed(positions))
    if groups is None:
        return [[i] for i in backwards]
    if isinstance(groups, int):
        count = min(groups, len(backwards))
        cuts = [len(backwards) * k // max(1, count) for k in range(count + 1)]
        return [backwards[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
    _check_known(groups, paths)
    number_of = {path: n for n, group in enumerate(groups) for path in group}
    planned: dict[int | tuple[int], list[int]] = {}
    for i in backwards:
        planned.setdefault(number_of.get(paths[i], (i,)), []).append(i)
    return list(planned.values())


def _is_list(value: object) -> bool:
    """Say whether a value is a sequence, and not one of characters."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def _check_known(
    groups: Sequence[Sequence[Hashable]], paths: Sequence[Hashable]
) -> None:
    """Refuse a path that no variable has."""
    for group in groups:
        for path in group:
            if path not in paths:
                nearest = difflib.get_close_matches(str(path), map(str, paths), n=1)
                advice = f"Did you mean {nearest[0]!r}?" if nearest else ""
                raise ValueError(
                    "groups must name variables that are trained. Received: "
                    f"{path!r}. {advice or f'There are: {list(paths)}.'}"
                )
