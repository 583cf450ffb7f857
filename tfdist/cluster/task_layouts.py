"""On which node each task of a job step is, as Slurm deals them out."""


def deal(counts: tuple[int, ...], *, at_once: int) -> tuple[int, ...]:
    """Return the node of each task.

    The tasks go round the nodes in turn, some at once to each, until a node has all
    that it gets. `--distribution=block` gives a node all of its tasks at once, cyclic
    one, and plane as many as it says.

    Args:
        counts: How many tasks each node gets in the end.
        at_once: How many it gets in one turn, at least 1.

    Returns:
        The number of a node for each task, in the order of the tasks.

    Example:
        >>> deal((2, 1, 2), at_once=2), deal((2, 1, 2), at_once=1)
        ((0, 0, 1, 2, 2), (0, 1, 2, 0, 2))
    """
    left = {node: count for node, count in enumerate(counts) if count}
    nodes: list[int] = []
    while left:
        for node, count in left.items():
            nodes += [node] * min(at_once, count)
        left = {
            node: count - at_once for node, count in left.items() if count > at_once
        }
    return tuple(nodes)


def places_on_nodes(nodes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of each task among those on its node.

    Args:
        nodes: The node of each task.

    Returns:
        A number from 0 for each task; on a node they rise with the tasks.

    Example:
        >>> places_on_nodes((0, 1, 2, 0, 2))
        (0, 0, 0, 1, 1)
    """
    seen: dict[int, int] = {}
    places = []
    for node in nodes:
        places.append(seen.get(node, 0))
        seen[node] = places[-1] + 1
    return tuple(places)
