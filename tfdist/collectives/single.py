"""The collective of a single process, which returns its inputs."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives.base import (
    Collective,
    check_has_rows,
    check_reducible,
    check_root_rank,
    to_tensor,
)
from tfdist.collectives.wire_format import to_move


class SingleCollective(Collective):
    """The collective of a single process, without overhead."""

    rank, size = 0, 1

    def all_reduce(
        self, tensors: Sequence[Any], reduction: str = "sum", *, name: str
    ) -> list[Any]:
        """Return the tensors; see `Collective.all_reduce`."""
        tensors = [to_tensor(tensor) for tensor in tensors]
        for tensor in tensors:
            check_reducible(tensor, reduction)
        return tensors

    def all_gather(self, tensor: Any, *, name: str) -> Any:
        """Return the tensor; see `Collective.all_gather`."""
        tensor = tf.convert_to_tensor(tensor)
        check_has_rows(tensor, name)
        return tensor

    def broadcast(
        self, tensors: Sequence[Any], root_rank: int = 0, *, name: str
    ) -> list[Any]:
        """Return the tensors; see `Collective.broadcast`."""
        check_root_rank(root_rank, 1)
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        for tensor in tensors:
            to_move(tensor)  # Raises for types that cannot be sent.
        return tensors

    def exchange(self, name: str, value: Any, *, joint: bool = True) -> list[Any]:
        """Return the value of this one process; see `Collective.exchange`."""
        return [value]
