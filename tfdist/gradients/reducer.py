"""Reduction of gradients over ranks, bucket by bucket."""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives.base import Collective, join_slices, map_values
from tfdist.compat.keras.hooks import GradientPlan
from tfdist.compat.sparse_updates import add_slices
from tfdist.gradients.buckets import (
    ALONE_BYTES,
    BUCKET_BYTES,
    add_to_buckets,
    plan_buckets,
)
from tfdist.gradients.compression import Compression
from tfdist.gradients.sparse import (
    ALIGNED,
    DENSE,
    NONE,
    SPARSE,
    agree,
    are_sums,
    convert,
    kind_of,
    split_by_origin,
    told_kind,
)
from tfdist.sharding.assignment import DIVIDED
from tfdist.sharding.rows import Part, join_divided, split_divided


class GradientReducer:
    """A sum of gradients over ranks, bucket by bucket, during the backward pass.

    It never averages: each rank's gradient is first weighted by its share of the global
    batch, so the sum is the gradient of the whole batch's mean.
    """

    _told_kind = staticmethod(told_kind)

    def __init__(
        self,
        collective: Collective,
        *,
        bucket_bytes: int | None = None,
        sparse_as_dense: bool = False,
        compression: str = "none",
    ) -> None:
        if bucket_bytes is None and not collective.sends_at_once:
            bucket_bytes = BUCKET_BYTES
        self._collective = collective
        self._bucket_bytes = bucket_bytes
        self._sparse_as_dense = sparse_as_dense
        self._compression = Compression(compression, collective.size)
        self._agreed: dict[tuple[Any, ...], list[str]] = {}

    def complete(
        self, gradients: Sequence[Any], variables: Sequence[Any], name: str
    ) -> GradientPlan:
        """Fill in missing gradients, so that all ranks have the same kinds.

        None becomes zeros, and sparse becomes dense, where another rank needs it.
        Otherwise a rank would wait for gradients that others never send. The ranks
        agree once per graph, and in each eager step.
        """
        kinds = tuple(self._told_kind(gradient) for gradient in gradients)
        paths = tuple(map(path_of, variables))
        key = (name, paths, kinds)
        agreed = None if tf.executing_eagerly() else self._agreed.get(key)
        if agreed is None:
            by_rank = self._collective.exchange(f"the gradients of {name}", list(kinds))
            _check_equal_counts(by_rank, name)
            agreed = [agree(all_ranks) for all_ranks in zip(*by_rank, strict=True)]
            if self._sparse_as_dense:
                agreed = [kind if kind == NONE else DENSE for kind in agreed]
            if not tf.executing_eagerly():
                self._agreed[key] = agreed
        each = zip(gradients, agreed, variables, strict=True)
        return GradientPlan([convert(*one) for one in each], variables)

    def traced_kinds(self) -> dict[str, str]:
        """Return the kind of each gradient in the steps traced so far, by path."""
        return {
            path: kind
            for (_, paths, _), agreed in self._agreed.items()
            for path, kind in zip(paths, agreed, strict=True)
        }

    def weight(self, share: Any) -> Any:
        """Return the weight of a rank's gradients, given its share of the batch."""
        return share

    def reduce(
        self, plan: GradientPlan, name: str, *, beside: Sequence[Any] = ()
    ) -> list[Any]:
        """Return the sums of gradients and `beside` tensors, identical on all ranks.

        All ranks must have the same kinds of gradients, see `complete`. `beside` are
        small float tensors, sent uncompressed in buckets of their type.
        """
        compression, are_shares = self._compression, plan.are_shares
        sent = [compression.compress(g, are_shares=are_shares) for g in plan.gradients]
        owners: list[int | None] = [*plan.owners] or [None] * len(sent)
        owners += [None] * len(beside)
        size, rank = self._collective.size, self._collective.rank
        parts = split_divided([*sent, *beside], owners, size, ALONE_BYTES)
        # Of a divided gradient, this rank's rows.
        sums = join_divided(
            [
                part
                for part in self._reduce(plan, parts, name)
                if owners[part.position] != DIVIDED or part.owner in (None, rank)
            ]
        )
        return [
            compression.decompress(total, gradient, are_shares=are_shares)
            for total, gradient in zip(sums, [*plan.gradients, *beside], strict=True)
        ]

    def state(self, variables: Sequence[Any]) -> list[Any]:
        """Return the Keras variables that the next call needs; none here."""
        return []

    def _reduce(self, plan: GradientPlan, parts: list[Part], name: str) -> list[Part]:
        """Sum the parts of gradients and of what is beside them."""
        results = list(parts)
        kinds = [kind_of(part.tensor) for part in parts]
        sparse = [[i] for i, kind in enumerate(kinds) if kind not in (NONE, DENSE)]
        dense = [i for i, kind in enumerate(kinds) if kind == DENSE]
        buckets = self._buckets(plan, [parts[i] for i in dense])
        messages = sparse + [[dense[n] for n in bucket] for bucket in buckets]
        for number, positions in enumerate(messages):
            group = [parts[i].tensor for i in positions]
            roots = [rank for i in positions if (rank := parts[i].owner) is not None]
            if positions in sparse:
                sums = [self._sum_sparse(group[0], f"{name}/b{number}")]
            elif not roots:
                sums = self._sum(group, f"{name}/b{number}")
            else:
                sums = self._collective.reduce(group, roots, name=f"{name}/b{number}")
            for i, total in zip(positions, sums, strict=True):
                results[i] = parts[i]._replace(tensor=total)
        return results

    def _buckets(self, plan: GradientPlan, parts: list[Part]) -> list[list[int]]:
        """Plan the messages of dense parts; the last ones are not gradients."""
        if self._bucket_bytes is None:
            # What all ranks need goes apart from what one needs.
            groups: dict[Any, list[int]] = {}
            for i, part in enumerate(parts):
                key = part.tensor.dtype, part.owner is None
                groups.setdefault(key, []).append(i)
            return list(groups.values())
        kinds = [(part.tensor.dtype, part.owner) for part in parts]
        sizes = [size_bytes(part.tensor) for part in parts]
        count = sum(part.position < len(plan.gradients) for part in parts)
        buckets = plan_buckets(sizes[:count], kinds[:count], self._bucket_bytes)
        return add_to_buckets(buckets, sizes, kinds)

    def _sum_sparse(self, gradient: Any, name: str) -> Any:
        """Gather the slices of a gradient, or sum those that are parts of sums."""
        kind = kind_of(gradient)
        if kind == ALIGNED:
            (values,) = self._sum([gradient.values], name)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        if kind == SPARSE:
            return self._sum([gradient], name)[0]
        sums = []
        for number, part in enumerate(split_by_origin(gradient)):
            total = self._sum_sparse(part, f"{name}/{number}")
            sums.append(add_slices(total) if are_sums(part) else total)
        return join_slices(sums)

    def _sum(self, tensors: list[Any], name: str) -> list[Any]:
        """Sum tensors in one message."""
        return self._collective.all_reduce(tensors, "sum", name=name)


def weigh(
    gradients: Sequence[Any], share: Any, *, is_positive: bool = False
) -> list[Any]:
    """Multiply gradients by this rank's share of the global batch, a float64 tensor.

    A share of 0 gives zeros, even from NaN. `is_positive` excludes 0, in half the time.
    """

    def weigh_one(gradient: Any) -> Any:
        factor = tf.cast(share, gradient.dtype)
        if is_positive:
            return gradient * factor
        # A rank without rows computes on a placeholder, with arbitrary gradients.
        if gradient.dtype == tf.bfloat16:
            # GPUs have no kernel for the product below.
            return tf.where(factor > 0, gradient * factor, tf.zeros_like(gradient))
        return tf.math.multiply_no_nan(gradient, factor)

    return [None if g is None else map_values(weigh_one, g) for g in gradients]


def _check_equal_counts(by_rank: list[list[str]], name: str) -> None:
    """Raise `RuntimeError` if ranks have different numbers of variables."""
    counts = [len(kinds) for kinds in by_rank]
    if len(set(counts)) > 1:
        raise RuntimeError(
            f"The ranks have different numbers of variables for {name}. Received: "
            f"{counts} by rank. Build the same model on every rank."
        )


def path_of(variable: Any) -> str:
    """Return the path of a Keras variable, or the name of one of TensorFlow."""
    return variable.path if hasattr(variable, "path") else variable.name


def size_bytes(gradient: Any) -> int:
    """Return the size of a gradient; unknown dimensions count as 1."""
    return math.prod(length or 1 for length in gradient.shape) * gradient.dtype.size
