"""The one way by which gradients go from rank to rank."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives.base import Collective
from tfdist.gradients.bucketing import (
    BUCKET_BYTES,
    check_bucket_bytes,
    plan_buckets,
    take_along,
)
from tfdist.gradients.compression import Compression
from tfdist.gradients.sparse import DENSE, NONE, SPARSE, agree, convert, kind_of


class GradientReducer:
    """Sums gradients over ranks, bucket by bucket, while the backward pass goes on.

    It sums and never averages: each rank's gradient is weighed beforehand by its share
    of the global batch, so that the sum is the gradient of the whole batch's mean.

    Args:
        collective: How the ranks talk.
        bucket_bytes: How many bytes of gradients travel together; 0 sends each by
            itself. Default 25 MiB.
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
        """Make the gradients of this rank such that every rank has the same ones.

        A variable that only some ranks used has no gradient on the others, which would
        then wait for a tensor that nobody sends. A graph asks the others once, when it
        is traced; eager code, where each step may differ, every time.

        Args:
            gradients: Tensors, `tf.IndexedSlices` and None.
            variables: What they are the gradients of.
            name: Whose gradients they are, the same on every rank.

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
        """Return what the gradients of a rank are multiplied by before they travel.

        Args:
            share: The rank's part of the rows of the global batch, a scalar tensor.

        Returns:
            A scalar tensor.
        """
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
            name: Whose gradients they are, the same on every rank.
            beside: Small float tensors that are summed as well, uncompressed; on the
                same journeys if a dense gradient travels in their type. Default none.
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
        """Sum tensors as they are, of which the last few come beside."""
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
        """Plan the buckets of dense tensors, of which the last few come beside."""
        sizes = [_size_bytes(tensor) for tensor in tensors]
        types = [tensor.dtype for tensor in tensors]
        count = len(tensors) - beside
        buckets = plan_buckets(sizes[:count], types[:count], self._bucket_bytes)
        return take_along(buckets, sizes, types)

    def _sum(self, tensors: list[Any], name: str) -> list[Any]:
        """Sum tensors that travel together."""
        return self._collective.all_reduce(tensors, "sum", name=name)


def weigh(
    gradients: Sequence[Any], share: Any, *, is_positive: bool = False
) -> list[Any]:
    """Multiply gradients by this rank's share of the global batch.

    Args:
        gradients: Tensors, `tf.IndexedSlices` and None.
        share: This rank's part of the rows, a scalar float64 tensor: a small float
            type cannot count those of a large batch.
        is_positive: Whether the share cannot be 0, which saves half of the time.
            Default False.

    Returns:
        The gradients times the share; zero, whatever they were, if it is 0.
    """

    def weigh_one(gradient: Any) -> Any:
        if kind_of(gradient) == NONE:
            return None
        if isinstance(gradient, tf.IndexedSlices):
            values = weigh_one(gradient.values)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        factor = tf.cast(share, gradient.dtype)
        if is_positive:
            return gradient * factor
        # A rank without rows works on a stand-in, whose gradient may be anything.
        return tf.math.multiply_no_nan(gradient, factor)

    return [weigh_one(gradient) for gradient in gradients]


def _check_equal_counts(by_rank: list[list[str]], name: str) -> None:
    """Refuse models that differ between ranks."""
    counts = [len(kinds) for kinds in by_rank]
    if len(set(counts)) > 1:
        raise RuntimeError(
            f"The ranks have different numbers of variables for {name}. Received: "
            f"{counts} by rank. Build the same model on every rank."
        )


def _size_bytes(gradient: Any) -> int:
    """Return how many bytes a gradient takes; an unknown dimension counts as 1."""
    elements = 1
    for length in gradient.shape:
        elements *= length or 1
    return elements * int(gradient.dtype.size)
