"""The collective of a process that is alone, and takes itself for one of many."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfdist.collectives import FusingCollective
from tfdist.collectives.recorder import Recorder
from tfdist.collectives.wire_format import TypedCollective


class LoneCollective(TypedCollective):
    """A collective that records what it would send, and gets its own values back.

    The sums lack the other ranks' parts, so that the weights are of no use; sizes,
    order and time of what is computed are those of a rank.
    """

    def __init__(
        self, rank: int, size: int, recorder: Recorder, *, sends_at_once: bool
    ) -> None:
        self.rank, self.size = rank, size
        self.sends_at_once = sends_at_once
        self._recorder = recorder

    def exchange(self, name: str, value: Any, *, joint: bool = True) -> list[Any]:
        """Return the value as that of all ranks; see `Collective.exchange`."""
        del name, joint
        return [value] * self.size

    def barrier(self, name: str = "barrier") -> None:
        """Return at once; see `Collective.barrier`."""

    @contextmanager
    def call(self, what: str) -> Iterator[None]:
        """Do nothing; see `Collective.call`."""
        del what
        yield

    def reduce(
        self, tensors: Sequence[Any], root_ranks: Sequence[int], *, name: str
    ) -> list[Any]:
        """Return the tensors; see `Collective.reduce`."""
        del root_ranks
        return self._send(f"reduce {name!r}", list(tensors))

    def share(
        self, tensors: Sequence[Any], root_ranks: Sequence[int], *, name: str
    ) -> list[Any]:
        """Return the tensors; see `Collective.share`."""
        del root_ranks
        return self._send(f"share {name!r}", list(map(tf.convert_to_tensor, tensors)))

    def _reduce(self, tensors: list[Any], reduction: str, name: str) -> list[Any]:
        del reduction
        return self._send(f"all_reduce {name!r}", tensors)

    def _gather(self, tensor: Any, name: str) -> Any:
        (sent,) = self._send(f"all_gather {name!r}", [tensor])
        return tf.tile(sent, [self.size] + [1] * (tensor.shape.rank - 1))

    def _broadcast(self, tensors: list[Any], root_rank: int, name: str) -> list[Any]:
        del root_rank
        return self._send(f"broadcast {name!r}", tensors)

    def _send(self, what: str, tensors: list[Any]) -> list[Any]:
        """Record that tensors are sent, once they are computed."""
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
        del op, factors
        return self._send(f"all_reduce {name!r}", list(tensors))
