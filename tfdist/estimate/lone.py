"""The collective of a simulated rank, which records what it would send."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfdist.collectives.base import FusingCollective
from tfdist.collectives.wire_format import TypedCollective
from tfdist.recorder.graph import Recorder


class LoneCollective(TypedCollective):
    """A collective that sends nothing, and gets its own values back.

    The sums lack the other ranks' parts, so that the weights are of no use; sizes,
    order and time of what is computed are those of a rank.

    Attributes:
        is_updating: Whether an optimizer applies gradients.
        sent: The kind of each entry of the record, and whether it sends gradients.
    """

    is_lone = True

    def __init__(self, size: int, recorder: Recorder, *, sends_at_once: bool) -> None:
        self.rank, self.size = 0, size
        self.sends_at_once = sends_at_once
        self.is_updating = False
        self.sent: dict[str, tuple[str, bool]] = {}
        self._recorder = recorder

    def exchange(self, name: str, value: Any, *, joint: bool = True) -> list[Any]:
        """Return the value as that of all ranks; see `Collective.exchange`."""
        return [value] * self.size

    def barrier(self, name: str = "barrier") -> None:
        """Return at once; see `Collective.barrier`."""

    @contextmanager
    def call(self, what: str) -> Iterator[None]:
        """Do nothing; see `Collective.call`."""
        yield

    def reduce(
        self, tensors: Sequence[Any], root_ranks: Sequence[int], *, name: str
    ) -> list[Any]:
        """Return the tensors; see `Collective.reduce`."""
        return self._send("reduce", name, list(tensors))

    def share(
        self, tensors: Sequence[Any], root_ranks: Sequence[int], *, name: str
    ) -> list[Any]:
        """Return the tensors; see `Collective.share`."""
        return self._send("share", name, list(map(tf.convert_to_tensor, tensors)))

    def _reduce(self, tensors: list[Any], reduction: str, name: str) -> list[Any]:
        return self._send("all_reduce", name, tensors)

    def _gather(self, tensor: Any, name: str) -> Any:
        (sent,) = self._send("all_gather", name, [tensor])
        return tf.tile(sent, [self.size] + [1] * (tensor.shape.rank - 1))

    def _broadcast(self, tensors: list[Any], root_rank: int, name: str) -> list[Any]:
        return self._send("broadcast", name, tensors)

    def _send(self, kind: str, name: str, tensors: list[Any]) -> list[Any]:
        """Record that tensors are sent, once they are computed."""
        what = f"{kind} {name!r}"
        # The update sends gradients, and then the weights.
        self.sent[what] = kind, self.is_updating and kind != "share"
        if tf.executing_eagerly():
            size_bytes = sum(int(tf.size(t)) * t.dtype.size for t in tensors)
            with self._recorder.entry(what, size_bytes):
                return tensors
        return self._recorder.traced(
            what, tensors, lambda: [tf.identity(tensor) for tensor in tensors]
        )


class LoneFusingCollective(LoneCollective, FusingCollective):
    """The same for Horovod, to which each gradient is given once it is computed."""

    def check_op(self, op: str) -> None:
        """Accept any op; see `FusingCollective.check_op`."""

    def all_reduce_as(
        self,
        tensors: Sequence[Any],
        op: str,
        *,
        name: str,
        factors: tuple[float, float] = (1.0, 1.0),
    ) -> list[Any]:
        """Return the tensors; see `FusingCollective.all_reduce_as`."""
        return self._send("all_reduce", name, list(tensors))
