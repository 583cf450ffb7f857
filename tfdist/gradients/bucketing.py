"""Which gradients travel together: pure arithmetic, without TensorFlow."""

from collections.abc import Hashable, Sequence

BUCKET_BYTES = 25 * 2**20
FIRST_BUCKET_BYTES = 2**20
# To join a tensor with others costs a copy of it, twice. From about this size on, a
# journey of its own costs less time, and always less memory.
ALONE_BYTES = 4 * 2**20


def plan_buckets(
    sizes_bytes: Sequence[int],
    kinds: Sequence[Hashable],
    bucket_bytes: int,
    first_bucket_bytes: int = FIRST_BUCKET_BYTES,
) -> list[list[int]]:
    """Group tensors into buckets, the last tensor first.

    The backward pass reaches the last layers first, so their gradients can travel
    while the others are still computed. A bucket is full once it holds the limit, and
    the first is smaller than the others so that the network starts early. A tensor of
    4 MiB and more travels by itself.

    Args:
        sizes_bytes: The size of each tensor, in the order of the layers.
        kinds: What must be equal within a bucket, for example the types.
        bucket_bytes: How much fills a bucket; 0 makes one for each tensor.
        first_bucket_bytes: How much fills the first bucket of a kind. Default 1 MiB.

    Returns:
        Positions of the tensors, by bucket, in the order of sending.

    Raises:
        ValueError: If `bucket_bytes` is negative.

    Example:
        >>> plan_buckets([4, 4, 4, 4], ["float32"] * 4, 8, first_bucket_bytes=4)
        [[3], [2, 1], [0]]

    References:
        Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel
        Training", VLDB 2020, section 3.2.3.
    """
    check_bucket_bytes(bucket_bytes)
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


def take_along(
    buckets: Sequence[Sequence[int]],
    sizes_bytes: Sequence[int],
    kinds: Sequence[Hashable],
) -> list[list[int]]:
    """Let tensors that were not planned for travel in the buckets that there are.

    Each joins the smallest bucket of its kind, where joining costs the smallest copy,
    so that it needs no journey of its own. Those of a kind that has no bucket share a
    new one, which goes first: they are there before the backward pass begins.

    Args:
        buckets: What `plan_buckets` made of the first tensors.
        sizes_bytes: The sizes of those tensors, followed by those of the others.
        kinds: Their kinds, in the same order.

    Returns:
        Positions of all tensors, by bucket, in the order of sending.

    Example:
        >>> take_along([[2, 1], [0]], [8, 8, 8, 2], ["float32"] * 4)
        [[2, 1], [0, 3]]
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


def check_bucket_bytes(bucket_bytes: int) -> None:
    """Refuse a bucket that could hold nothing.

    Raises:
        ValueError: If it is negative.
    """
    if bucket_bytes < 0:
        raise ValueError(
            f"bucket_bytes must not be negative. Received: bucket_bytes={bucket_bytes}."
            " Use 0 to send each gradient by itself."
        )
