"""What every way of moving tensors between ranks can do."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

REDUCTIONS = ("sum", "mean", "min", "max")


class Collective(ABC):
    """Moves tensors and small values between the ranks of a job.

    Every rank must make the same calls in the same order, each with the same name and
    with equal shapes and types; `all_gather` alone lets the rows differ. A rank that
    does not is an error on all ranks, which names it; never a silent wait. The tensor
    calls work eagerly and inside of a `tf.function`, where the name says which
    operations on two ranks belong together.
    """

    @property
    @abstractmethod
    def rank(self) -> int:
        """The number of this process, from 0."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many processes take part."""

    @abstractmethod
    def all_reduce(
        self, tensors: Sequence[Any], reduction: str = "sum", *, name: str
    ) -> list[Any]:
        """Combine tensors over all ranks, element by element.

        Args:
            tensors: Tensors or `tf.IndexedSlices` of any number type and shape, the
                same on every rank. The rows of `tf.IndexedSlices` may differ.
            reduction: "sum", "mean", "min" or "max". Default "sum". The mean of
                integers is rounded down.
            name: What is reduced, the same on every rank.

        Returns:
            The results in the order of `tensors`, bit-identical on every rank.

        Raises:
            TypeError: If a tensor is not of a number type.
            ValueError: If the reduction is unknown, or not possible for the type.
        """

    @abstractmethod
    def all_gather(self, tensor: Any, *, name: str) -> Any:
        """Join the rows of all ranks, in the order of the ranks.

        Args:
            tensor: Of shape (rows, ...) and any type; only `rows` may differ.
            name: What is gathered, the same on every rank.

        Returns:
            A tensor of shape (rows of all ranks, ...), the same on every rank.

        Raises:
            ValueError: If the tensor is a scalar.
        """

    @abstractmethod
    def broadcast(
        self, tensors: Sequence[Any], root_rank: int = 0, *, name: str
    ) -> list[Any]:
        """Give every rank the tensors of one.

        Args:
            tensors: Tensors of any number type; of the same shapes and types on every
                rank.
            root_rank: Whose values are given. Default 0.
            name: What is broadcast, the same on every rank.

        Returns:
            The root's tensors, to the bit.

        Raises:
            ValueError: If no process has that rank.
        """

    @abstractmethod
    def exchange(self, name: str, value: Any, *, joint: bool = True) -> list[Any]:
        """Give a small value and get those of all ranks, outside of any graph.

        Args:
            name: What is exchanged, the same on every rank.
            value: What JSON can hold.
            joint: Whether this is one of the calls that every rank makes in the same
                order; False for threads beside them. Default True.

        Returns:
            The values by rank.
        """

    @abstractmethod
    def barrier(self, name: str = "barrier") -> None:
        """Wait until every rank is here.

        Args:
            name: Which barrier, the same on every rank. Default "barrier".
        """

    @abstractmethod
    def call(self, what: str) -> AbstractContextManager[None]:
        """Mark a stretch of the program in which ranks may wait for each other.

        Args:
            what: The stretch in words, the same on every rank.

        Returns:
            A context; an error that a failed peer caused leaves it with that peer
            named.
        """


class FusingCollective(Collective):
    """A collective that itself joins the tensors that are on their way at one time.

    Buckets would only make them wait for each other.
    """

    @abstractmethod
    def check_op(self, op: str) -> None:
        """Refuse an operation that `all_reduce_as` cannot do here.

        Args:
            op: "average", "sum" or "adasum".

        Raises:
            ValueError: If it needs what this job does not have.
        """

    @abstractmethod
    def all_reduce_as(
        self,
        tensors: Sequence[Any],
        op: str,
        *,
        name: str,
        factors: tuple[float, float] = (1.0, 1.0),
    ) -> list[Any]:
        """Combine tensors over all ranks, as a group.

        Args:
            tensors: Float tensors of one type, of the same shapes on every rank. They
                set out when the last of them is there.
            op: "adasum"; "average" and "sum" are a sum, for the factors to divide.
            name: What is reduced, the same on every rank.
            factors: What tensors are multiplied by before, and results after.
                Default 1 and 1.

        Returns:
            The results in the order of `tensors`.
        """


def check_reduction(reduction: str) -> None:
    """Refuse a reduction that does not exist.

    Raises:
        ValueError: If it is not one of `REDUCTIONS`.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"reduction must be one of {', '.join(REDUCTIONS)}. "
            f"Received: reduction={reduction!r}. Use 'sum' to add over the ranks."
        )


def check_root_rank(root_rank: int, size: int) -> None:
    """Refuse a rank that nobody has.

    Raises:
        ValueError: If it is not from 0 to size - 1.
    """
    if not 0 <= root_rank < size:
        raise ValueError(
            f"root_rank must be from 0 to {size - 1}. Received: root_rank={root_rank}. "
            "Use 0 for the chief."
        )
