"""Reduction of gradients by Horovod's own operations and fusion."""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives.base import FusingCollective
from tfdist.collectives.wire_format import by_dtype
from tfdist.compat.keras.hooks import GradientPlan
from tfdist.gradients.buckets import (
    Groups,
    check_groups,
    plan_groups,
    plan_neighbours,
)
from tfdist.gradients.reducer import GradientReducer, path_of, size_bytes, weigh
from tfdist.gradients.sparse import MIXED, SPARSE, kind_of
from tfdist.sharding.rows import Part

OPS = ("average", "sum", "adasum")


class HorovodReducer(GradientReducer):
    """A reducer that sends each gradient once computed; Horovod fuses those that wait.

    Only those that their owners get are sent together with neighbours.
    For the options see `HorovodStrategy`. Adasum is from Maleki et al., "Scaling
    Distributed Training with Adaptive Summation", MLSys 2021.
    """

    def __init__(
        self,
        collective: FusingCollective,
        *,
        op: str = "average",
        gradient_predivide_factor: float = 1.0,
        groups: Groups = None,
        sparse_as_dense: bool = False,
        compression: str = "none",
    ) -> None:
        collective.check_op(op)
        super().__init__(
            collective, sparse_as_dense=sparse_as_dense, compression=compression
        )
        self._fusing = collective
        self._op = op
        self._groups = groups
        size = float(collective.size)
        self._factors = (1.0, 1.0)
        if gradient_predivide_factor != 1.0:
            # Unlike Horovod's, these gradients are already multiplied by 1 / size.
            before = size / gradient_predivide_factor
            self._factors = (before, 1.0 / before)

    def weight(self, share: Any) -> Any:
        """Return a rank's weight; for Adasum 1, or 0 on a rank without rows."""
        return tf.sign(share) if self._op == "adasum" else share

    def complete(
        self, gradients: Sequence[Any], variables: Sequence[Any], name: str
    ) -> GradientPlan:
        """Agree on the kinds of gradients; see `GradientReducer.complete`."""
        plan = super().complete(gradients, variables, name)
        paths = [*map(path_of, variables)]
        _check_paths(self._groups, paths)
        for path, gradient in zip(paths, plan.gradients, strict=True):
            if self._op == "adasum" and kind_of(gradient) in (SPARSE, MIXED):
                raise ValueError(
                    "op='adasum' cannot combine sparse gradients. Received: that of "
                    f"{path!r}. Use sparse_as_dense=True."
                )
        return plan

    def reduce(
        self, plan: GradientPlan, name: str, *, beside: Sequence[Any] = ()
    ) -> list[Any]:
        """Combine gradients on all ranks; see `GradientReducer.reduce`."""
        # Adasum combines whole gradients.
        are_shares = plan.are_shares and self._op != "adasum"
        results = super().reduce(plan._replace(are_shares=are_shares), name)
        if self._op == "sum":
            # Only after decompression: float16 may not hold the product.
            results = weigh(results, self._fusing.size, is_positive=True)
        if beside:
            results += self._fusing.all_reduce(beside, name=f"{name}/beside")
        return results

    def _buckets(self, plan: GradientPlan, parts: list[Part]) -> list[list[int]]:
        """Plan the groups of dense gradients, or of those that their owners get."""
        tensors = [part.tensor for part in parts]
        if plan.owners:
            # Horovod does not fuse these.
            last = len(tensors) - 1
            sizes = [size_bytes(tensor) for tensor in reversed(tensors)]
            dtypes = [tensor.dtype for tensor in reversed(tensors)]
            buckets = plan_neighbours(sizes, dtypes, self._fusing.size)
            return [[last - i for i in bucket] for bucket in buckets]
        paths = [*map(path_of, plan.variables)]
        keys = [paths[part.position] for part in parts] if paths else []
        groups = plan_groups(self._groups, keys, len(tensors))
        return [
            alike
            for group in groups
            for alike in by_dtype({i: tensors[i] for i in group})
        ]

    def _sum(self, tensors: list[Any], name: str) -> list[Any]:
        """Combine gradients in one message; rows of sparse ones are only gathered."""
        if kind_of(tensors[0]) == SPARSE:
            return super()._sum(tensors, name)
        return self._fusing.all_reduce_as(
            tensors, self._op, name=name, factors=self._factors
        )


def _check_paths(groups: Groups, paths: Sequence[str]) -> None:
    """Raise `ValueError` for groups that contain a path which is not trained."""
    listed = groups if isinstance(groups, Sequence) else ()
    unknown = [path for group in listed for path in group if path not in paths]
    if unknown:
        raise ValueError(
            "groups must name variables that are trained. Received: "
            f"{unknown[0]!r}. There are: {list(paths)}."
        )


def check_horovod_options(
    op: str = "average",
    gradient_predivide_factor: float = 1.0,
    groups: Groups = None,
    compression: str = "none",
) -> None:
    """Raise `ValueError` for options that Horovod lacks, or that conflict."""
    if op not in OPS:
        raise ValueError(
            f"op must be one of {', '.join(OPS)}. Received: op={op!r}. "
            "Use 'average' for the weights that one process ends with."
        )
    if not 0 < gradient_predivide_factor < math.inf:
        raise ValueError(
            "gradient_predivide_factor must be positive and finite. Received: "
            f"gradient_predivide_factor={gradient_predivide_factor}. "
            "Use 1.0 to divide after the sum only."
        )
    if gradient_predivide_factor != 1.0 and op != "average":
        raise ValueError(
            "gradient_predivide_factor goes with op='average' only. Received: "
            f"gradient_predivide_factor={gradient_predivide_factor} and op={op!r}. "
            "Leave one of them out."
        )
    if groups is not None and op == "adasum":
        raise ValueError(
            "groups do not go with op='adasum', which combines each gradient by "
            f"itself. Received: groups={groups!r}. Leave one of them out."
        )
    if compression not in ("none", "fp16"):
        raise ValueError(
            "Horovod has no compression but 'fp16'. Received: compression="
            f"{compression!r}. Use 'fp16', or collective='tensorflow'."
        )
    check_groups(groups)
