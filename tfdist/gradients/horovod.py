"""How gradients travel on Horovod: by its operations, and joined as it joins them."""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives.base import FusingCollective
from tfdist.gradients.groups import Groups, check_groups, plan_groups
from tfdist.gradients.reducer import GradientReducer
from tfdist.gradients.sparse import DENSE, NONE, SPARSE, kind_of

OPS = ("average", "sum", "adasum")


class HorovodReducer(GradientReducer):
    """Sends each gradient as soon as it is there; Horovod joins those that wait.

    Args:
        collective: Horovod's.
        op: "average" gives the gradient of the global batch's mean; "sum" as many
            times that as there are ranks; "adasum" combines the gradients of the
            ranks' own means. Default "average".
        gradient_predivide_factor: What gradients are divided by before they are added
            up, and multiplied with after. Default 1.
        groups: Which gradients travel together: a number of groups, or lists of paths
            of variables. Default None: Horovod decides.
        sparse_as_dense: See `GradientReducer`. Default False.
        compression: "none" or "fp16", see `Compression`. Default "none".

    Raises:
        TypeError: If the groups are neither.
        ValueError: If an argument is impossible, or does not go with another.

    References:
        Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys
        2021.
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
        check_horovod_options(op, gradient_predivide_factor, groups, compression)
        collective.check_op(op)
        super().__init__(
            collective, sparse_as_dense=sparse_as_dense, compression=compression
        )
        self._fusing = collective
        self._op = op
        self._groups = groups
        self._paths: list[str] = []
        size = float(collective.size)
        self._factors = (1.0, 1.0)
        if gradient_predivide_factor != 1.0:
            # Gradients come multiplied by shares of 1 / size, where Horovod's do not.
            before = size / gradient_predivide_factor
            self._factors = (before, 1.0 / before)

    def weight(self, share: Any) -> Any:
        """Return what a rank's gradients are multiplied by; see `GradientReducer`.

        Adasum combines whole gradients; that of a rank without rows is nothing.
        """
        return tf.sign(share) if self._op == "adasum" else share

    def complete(
        self, gradients: Sequence[Any], variables: Sequence[Any], name: str
    ) -> list[Any]:
        """Make every rank have the same gradients; see `GradientReducer.complete`."""
        completed = super().complete(gradients, variables, name)
        kinds = [kind_of(gradient) for gradient in completed]
        paths = [getattr(v, "path", v.name) for v in variables]
        # Keras drops what no rank has a gradient for, before it reduces the others.
        self._paths = [
            path for path, kind in zip(paths, kinds, strict=True) if kind != NONE
        ]
        if self._op == "adasum" and SPARSE in kinds:
            path = paths[kinds.index(SPARSE)]
            raise ValueError(
                "op='adasum' cannot combine sparse gradients. Received: that of "
                f"{path!r}. Use sparse_as_dense=True."
            )
        return completed

    def reduce(
        self,
        gradients: Sequence[Any],
        name: str,
        *,
        beside: Sequence[Any] = (),
        are_shares: bool = False,
    ) -> list[Any]:
        """Combine gradients over ranks; see `GradientReducer.reduce`."""
        # Those that Adasum combines are whole.
        are_shares = are_shares and self._op != "adasum"
        results = super().reduce(gradients, name, beside=beside, are_shares=are_shares)
        if self._op != "sum":
            return results
        count = len(gradients)
        # Only here, where nothing is compressed any more, is there room for it.
        return [self._times_size(total) for total in results[:count]] + results[count:]

    def _reduce(self, tensors: list[Any], beside: int, name: str) -> list[Any]:
        """Combine tensors, of which the last few come beside and are summed."""
        results = list(tensors)
        count = len(tensors) - beside
        kinds = [kind_of(tensor) for tensor in tensors[:count]]
        for i in (i for i, kind in enumerate(kinds) if kind == SPARSE):
            results[i] = self._sum([tensors[i]], f"{name}/{i}")[0]
        present = [i for i, kind in enumerate(kinds) if kind != NONE]
        dense = [n for n, i in enumerate(present) if kinds[i] == DENSE]
        for numbers in plan_groups(self._groups, self._paths, dense):
            group = [present[n] for n in numbers]
            for alike in _by_dtype(group, tensors):
                reduced = self._fusing.all_reduce_as(
                    [tensors[i] for i in alike],
                    self._op,
                    name=f"{name}/{alike[0]}",
                    factors=self._factors,
                )
                for i, result in zip(alike, reduced, strict=True):
                    results[i] = result
        if beside:
            results[count:] = self._sum(tensors[count:], f"{name}/beside")
        return results

    def _times_size(self, total: Any) -> Any:
        """Multiply a gradient by the number of ranks."""
        if total is None:
            return None
        size = tf.cast(self._fusing.size, total.dtype)
        if isinstance(total, tf.IndexedSlices):
            values = total.values * size
            return tf.IndexedSlices(values, total.indices, total.dense_shape)
        return total * size


def check_horovod_options(
    op: str = "average",
    gradient_predivide_factor: float = 1.0,
    groups: Groups = None,
    compression: str = "none",
) -> None:
    """Refuse options that Horovod does not have, or not together.

    Raises:
        TypeError: If the groups are neither a number nor lists of paths.
        ValueError: If an option is impossible.
    """
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
    if compression == "bf16":
        raise ValueError(
            "Horovod does not move bfloat16. Received: compression='bf16'. Use 'fp16', "
            "or collective='tensorflow'."
        )
    check_groups(groups)


def _by_dtype(group: Sequence[int], tensors: Sequence[Any]) -> list[list[int]]:
    """Part the positions of a group by the types of their tensors."""
    parts: dict[Any, list[int]] = {}
    for i in group:
        parts.setdefault(tensors[i].dtype, []).append(i)
    return list(parts.values())
