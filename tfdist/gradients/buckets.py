"""Plans of the gradients to send together: pure arithmetic, without TensorFlow."""

import itertools
from collections.abc import Hashable, Sequence

# Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
# VLDB 2020, section 3.2.3.
BUCKET_BYTES = 25 * 2**20
# Smaller, so that the network starts early.
FIRST_BUCKET_BYTES = 2**20
# Packing copies a tensor twice. From about this size on, sending it alone takes less
# time, and always less memory.
ALONE_BYTES = 4 * 2**20
Groups = int | Sequence[Sequence[str]] | None


def plan_buckets(
    sizes_bytes: Sequence[int],
    kinds: Sequence[Hashable],
    bucket_bytes: int,
    first_bucket_bytes: int = FIRST_BUCKET_BYTES,
) -> list[list[int]]:
    """Group tensors into buckets, returned as positions in the order of sending.

    The backward pass reaches the last layers first, so their gradients can be sent
    while others are computed. A bucket is full once it holds `bucket_bytes`; 0 makes
    one per tensor. Tensors in a bucket are of one kind.
    """
    buckets: list[list[int]] = []
    open_buckets: dict[Hashable, list[int]] = {}
    limits: dict[Hashable, int] = {}
    for position in reversed(range(len(sizes_bytes))):
        if sizes_bytes[position] >= ALONE_BYTES:
            buckets.append([position])
            continue
        kind = kinds[position]
        if kind not in open_buckets:
            open_buckets[kind] = []
            buckets.append(open_buckets[kind])
        bucket = open_buckets[kind]
        bucket.append(position)
        limit = limits.get(kind, min(first_bucket_bytes, bucket_bytes))
        if sum(sizes_bytes[i] for i in bucket) >= limit:
            limits[kind] = bucket_bytes
            del open_buckets[kind]
    return buckets


def plan_neighbours(
    sizes_bytes: Sequence[int], kinds: Sequence[Hashable], ranks: int
) -> list[list[int]]:
    """Group neighbours of one kind until a bucket holds `ALONE_BYTES` for each rank.

    Then it has weights of most ranks, which all send at the same time.
    """
    buckets: list[list[int]] = []
    filled = limit = ranks * ALONE_BYTES
    for i, (size, kind) in enumerate(zip(sizes_bytes, kinds, strict=True)):
        if filled >= limit or kind != kinds[i - 1]:
            buckets.append([])
            filled = 0
        buckets[-1].append(i)
        filled += size
    return buckets


def add_to_buckets(
    buckets: Sequence[Sequence[int]],
    sizes_bytes: Sequence[int],
    kinds: Sequence[Hashable],
) -> list[list[int]]:
    """Add further tensors to planned buckets, each to the smallest of its kind.

    Tensors of a kind without a bucket share a new one, which is sent first, because
    they are known before the backward pass.
    """
    full = [list(bucket) for bucket in buckets]
    for position in range(sum(map(len, buckets)), len(sizes_bytes)):
        alike = [bucket for bucket in full if kinds[bucket[0]] == kinds[position]]
        if not alike:
            alike = [[]]
            full[:0] = alike
        smallest = min(alike, key=lambda b: sum(sizes_bytes[i] for i in b))
        smallest.append(position)
    return full


def plan_groups(
    groups: int | Sequence[Sequence[Hashable]] | None,
    keys: Sequence[Hashable],
    count: int,
) -> list[list[int]]:
    """Group `count` dense gradients as the user asks, the last layers first.

    `groups` is a number of groups of neighbours, or lists of keys of variables; a
    variable in no list is sent alone, and so is each with None.
    """
    backwards = list(reversed(range(count)))
    if groups is None:
        return [[i] for i in backwards]
    if isinstance(groups, int):
        parts = min(groups, count)
        cuts = [count * k // max(1, parts) for k in range(parts + 1)]
        return [backwards[a:b] for a, b in itertools.pairwise(cuts)]
    number_of = {key: n for n, group in enumerate(groups) for key in group}
    planned: dict[int | tuple[int], list[int]] = {}
    for i in backwards:
        planned.setdefault(number_of.get(keys[i], (i,)), []).append(i)
    return list(planned.values())


def check_bucket_bytes(bucket_bytes: int) -> None:
    """Raise `ValueError` for a negative size of buckets."""
    if bucket_bytes < 0:
        raise ValueError(
            f"bucket_bytes must not be negative. Received: bucket_bytes={bucket_bytes}."
            " Use 0 to send each gradient by itself."
        )


def check_groups(groups: Groups) -> None:
    """Raise `ValueError` unless groups are a positive number or disjoint lists."""
    if groups is None or (isinstance(groups, int) and groups > 0):
        return
    if not isinstance(groups, list | tuple) or not all(
        isinstance(group, list | tuple) and all(isinstance(path, str) for path in group)
        for group in groups
    ):
        raise ValueError(
            "groups must be a positive number, or lists of paths of variables. "
            f"Received: groups={groups!r}. Write paths as they stand in variable.path, "
            "for example [['dense/kernel', 'dense/bias']]."
        )
    paths = [path for group in groups for path in group]
    if len(set(paths)) < len(paths):
        raise ValueError(
            f"groups must name each variable once. Received: groups={groups!r}. "
            "Leave it in one group."
        )
