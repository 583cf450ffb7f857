"""The reduction of gradients over ranks, bucket by bucket."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives.base import Collective, map_values
from tfdist.gradients.buckets import (
    BUCKET_BYTES,
    add_to_buckets,
    check_bucket_bytes,
    plan_buckets,
)
from tfdist.gradients.compression import Compression
from tfdist.gradients.sparse import DENSE, SPARSE, agree, convert, kind_of


class GradientReducer:
    """Sums gradients over ranks, bucket by bucket, during the backward pass.

    It sums and never averages: each rank's gradient is first weighted by its share of
    the global batch, so that the sum is the gradient of the whole batch's mean.

    Args:
        collective: The collective of the ranks.
        bucket_bytes: The size of a bucket in bytes; 0 sends each gradient by itself.
            Default 25 MiB.
        sparse_as_dense: Whether `tf.IndexedSlices` are made dense and summed instead
            of gathered. Default False.
        compression: The type in which float32 and float64 gradients travel: "none" is
            their own; "fp16" and "bf16" take two bytes an element, see `Compression`.
            Default "none".

    Raises:
        ValueError: If `bucket_bytes` is negative, or the compression unknown.
    """

    def __init__(
        self,
        collective: Collective,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        sparse_as_dense: bool = False,
        compression: str = "none",
    ) -> None:
        check_bucket_bytes(bucket_bytes)
        self._collective = collective
        self._bucket_bytes = bucket_bytes
        self._sparse_as_dense = sparse_as_dense
        self._compression = Compression(compression, collective.size)
        self._agreed: dict[tuple[Any, ...], list[str]] = {}

    def complete(
        self, gradients: Sequence[Any], variables: Sequence[Any], name: str
    ) -> list[Any]:
        """Fill in missing gradients, so that all ranks have the same kinds.

        A variable that only some ranks used has no gradient on the others, and the
        ranks would wait for each other. The ranks agree once for a graph, when it is
        traced, and in every step of eager code, where each step may differ.

        Returns:
            The gradients: zeros for None where another rank has one, dense for sparse
            where another rank's is dense.
        """
        kinds = tuple(kind_of(gradient) for gradient in gradients)
        paths = tuple(getattr(v, "path", v.name) for v in variables)
        key = (name, paths, kinds)
        agreed = None if tf.executing_eagerly() else self._agreed.get(key)
        if agreed is None:
            by_rank = self._collective.exchange(f"the gradients of {name}", list(kinds))
            _check_equal_counts(by_rank, name)
            agreed = [agree(all_ranks) for all_ranks in zip(*by_rank, strict=True)]
            if self._sparse_as_dense:
                agreed = [DENSE if kind == SPARSE else kind for kind in agreed]
            if not tf.executing_eagerly():
                self._agreed[key] = agreed
        return [
            convert(gradient, kind, variable)
            for gradient, kind, variable in zip(
                gradients, agreed, variables, strict=True
            )
        ]

    def weight(self, share: Any) -> Any:
        """Return the weight of a rank's gradients, given its share of the batch."""
        return share

    def reduce(
        self,
        gradients: Sequence[Any],
        name: str,
        *,
        beside: Sequence[Any] = (),
        are_shares: bool = False,
    ) -> list[Any]:
        """Sum gradients over ranks.

        Args:
            gradients: Tensors, `tf.IndexedSlices` and None, in the order of the
                layers; the same kinds on every rank, see `complete`.
            name: Name of the operation, the same on every rank.
            beside: Small float tensors that are summed as well, uncompressed; in the
                buckets of their type, if there are any. Default none.
            are_shares: Whether the gradients are multiplied by shares that add up to
                1 over the ranks, so that no sum is larger than they were; see
                `Compression`. Default False.

        Returns:
            The sums of the gradients, None where there was None, followed by those of
            `beside`; bit-identical on every rank.
        """
        compression = self._compression
        sent = [compression.compress(g, are_shares=are_shares) for g in gradients]
        sums = self._reduce([*sent, *beside], len(beside), name)
        return [
            compression.decompress(total, gradient, are_shares=are_shares)
            for total, gradient in zip(sums, [*gradients, *beside], strict=True)
        ]

    def _reduce(self, tensors: list[Any], beside: int, name: str) -> list[Any]:
        """Sum tensors uncompressed; the last `beside` of them are no gradients."""
        results = list(tensors)
        kinds = [kind_of(tensor) for tensor in tensors]
        for i in (i for i, kind in enumerate(kinds) if kind == SPARSE):
            results[i] = self._sum([tensors[i]], f"{name}/{i}")[0]
        dense = [i for i, kind in enumerate(kinds) if kind == DENSE]
        buckets = self._plan([tensors[i] for i in dense], beside)
        for number, bucket in enumerate(buckets):
            positions = [dense[i] for i in bucket]
            sums = self._sum([tensors[i] for i in positions], f"{name}/b{number}")
            for i, total in zip(positions, sums, strict=True):
                results[i] = total
        return results

    def _plan(self, tensors: list[Any], beside: int) -> list[list[int]]:
        """Plan the buckets of dense tensors; the last `beside` join existing ones."""
        sizes = [_size_bytes(tensor) for tensor in tensors]
        types = [tensor.dtype for tensor in tensors]
        count = len(tensors) - beside
        buckets = plan_buckets(sizes[:count], types[:count], self._bucket_bytes)
        return add_to_buckets(buckets, sizes, types)

    def _sum(self, tensors: list[Any], name: str) -> list[Any]:
        """Sum tensors in one message."""
        return self._collective.all_reduce(tensors, "sum", name=name)


def weigh(
    gradients: Sequence[Any], share: Any, *, is_positive: bool = False
) -> list[Any]:
    """Multiply gradients by this rank's share of the global batch.

    A share of 0 gives zeros, whatever the gradients are. The share is float64, because
    a small float type cannot count the rows of a large batch. With `is_positive` the
    share cannot be 0, which takes half the time.
    """

    def weigh_one(gradient: Any) -> Any:
        factor = tf.cast(share, gradient.dtype)
        if is_positive:
            return gradient * factor
        # A rank without rows works on placeholder data, with arbitrary gradients.
        return tf.math.multiply_no_nan(gradient, factor)

    return [None if g is None else map_values(weigh_one, g) for g in gradients]


def _check_equal_counts(by_rank: list[list[str]], name: str) -> None:
    """Refuse ranks with different numbers of variables."""
    counts = [len(kinds) for kinds in by_rank]
    if len(set(counts)) > 1:
        raise RuntimeError(
            f"The ranks have different numbers of variables for {name}. Received: "
            f"{counts} by rank. Build the same model on every rank."
        )


def _size_bytes(gradient: Any) -> int:
    """Return the size of a gradient; an unknown dimension counts as 1."""
    elements = 1
    for length in gradient.shape:
        elements *= length or 1
    return elements * int(gradient.dtype.size)
