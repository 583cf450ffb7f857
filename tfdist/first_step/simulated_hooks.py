"""The hooks of simulated ranks, and of the current one of them."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives import Collective
from tfdist.gradients import GradientReducer
from tfdist.gradients.sparse import kind_of
from tfdist.training.hooks import StrategyKerasHooks


class SimulatedHooks(StrategyKerasHooks):
    """The hooks of a simulated rank, which decide what the traced step has decided."""

    def __init__(
        self, collective: Collective, reducer: GradientReducer, by_row: Sequence[bool]
    ) -> None:
        super().__init__(collective, reducer)
        self._by_row = iter(by_row)

    def is_by_row(self, value: Any) -> bool:
        """Return what the traced step has found, which eager code cannot see."""
        return next(self._by_row, False)


class AsTraced(GradientReducer):
    """A reducer of gradients that are sparse only where those in the graph were."""

    _told_kind = staticmethod(kind_of)

    def __init__(self, collective: Collective, sparse: Collection[str]) -> None:
        super().__init__(collective)
        self._sparse = sparse

    def complete(
        self, gradients: Sequence[Any], variables: Sequence[Any], name: str
    ) -> list[Any]:
        """Densify gradients that are sums in the graph."""
        paths = [getattr(v, "path", v.name) for v in variables]
        gradients = [
            g if g is None or path in self._sparse else tf.convert_to_tensor(g)
            for g, path in zip(gradients, paths, strict=True)
        ]
        return super().complete(gradients, variables, name)


class Current:
    """The one of several objects that belongs to the current rank."""

    def __init__(self, objects: Sequence[Any], rank: Callable[[], int]) -> None:
        vars(self).update(_objects=objects, _rank=rank)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects[self._rank()], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._objects[self._rank()], name, value)
