"""The interface that moves tensors between ranks, and checks of its arguments."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from tfdist.compat.tensorflow import number_of
from tfdist.liveness.lifeline import Lifeline
from tfdist.recorder.graph import Recorder
from tfdist.recorder.ring import Unrecorded

REDUCTIONS = ("sum", "mean", "min", "max")


class Collective(ABC):
    """Communication of tensors and small values between the ranks of a job.

    A subclass must define `rank`, `size`, `all_reduce`, `all_gather`, `broadcast` and
    `exchange`; it may override the other methods and attributes.

    All ranks must make the same calls in the same order, each with the same name and
    with equal shapes and types; only in `all_gather` may the number of rows differ. If
    a rank deviates, every rank raises an error that names it, instead of hanging.
    Tensor calls work eagerly and inside a `tf.function`, where the name matches the
    operations of different ranks.

    Attributes:
        rank: The rank of this process, from 0.
        size: The number of processes in the job.
        sends_at_once: Whether gradients are sent together, after the backward pass,
            unless the size of buckets is given.
        is_lone: Whether a sum holds this rank's part alone, as of a simulated rank.
        control: The `ControlPlane`, by which ranks agree without tensors.
        recorder: The record of collectives and steps; by default nothing is recorded.
    """

    rank: int
    size: int
    sends_at_once = False
    is_lone = False
    recorder: Recorder | Unrecorded = Unrecorded()

    @property
    def control(self) -> "ControlPlane | Lifeline":
        """The control plane; by default it exchanges values by this collective."""
        return ControlPlane(self)

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
            name: Name of the operation, the same on every rank.

        Returns:
            The results in the order of `tensors`, bit-identical on every rank.

        Raises:
            TypeError: If a tensor is not of a number type.
            ValueError: If the reduction is unknown, or not possible for the type.
        """

    def reduce(
        self, tensors: Sequence[Any], root_ranks: Sequence[int], *, name: str
    ) -> list[Any]:
        """Sum each tensor over all ranks on one of them.

        Args:
            tensors: Dense tensors of one float type, of the same shapes on every rank.
            root_ranks: The ranks that need the sums, one for each tensor.
            name: Name of the operation, the same on every rank.

        Returns:
            The sums that this rank needs; in place of others, tensors of their shapes.
        """
        return self.all_reduce(tensors, "sum", name=name)

    def share(
        self, tensors: Sequence[Any], root_ranks: Sequence[int], *, name: str
    ) -> list[Any]:
        """Send each tensor from one rank to all.

        Args:
            tensors: As in `broadcast`.
            root_ranks: The ranks that send, one for each tensor.
            name: Name of the operation, the same on every rank.

        Returns:
            The senders' tensors, bit for bit.
        """
        results = dict(enumerate(tensors))
        for root in sorted({*root_ranks}):
            sent = [i for i, rank in enumerate(root_ranks) if rank == root]
            group = self.broadcast([tensors[i] for i in sent], root, name=name)
            results.update(zip(sent, group, strict=True))
        return list(results.values())

    @abstractmethod
    def all_gather(self, tensor: Any, *, name: str) -> Any:
        """Concatenate the rows of all ranks, in the order of the ranks.

        Args:
            tensor: Of shape (rows, ...) and any type; only `rows` may differ.
            name: Name of the operation, the same on every rank.

        Returns:
            A tensor of shape (rows of all ranks, ...), the same on every rank.

        Raises:
            ValueError: If the tensor is a scalar.
        """

    def all_to_all(self, tensor: Any, *, name: str) -> Any:
        """Send each rank its row, and collect what all ranks send to this one.

        Args:
            tensor: Of shape (ranks, ...) and a number type, the same on every rank. Row
                r is for rank r.
            name: Name of the operation, the same on every rank.

        Returns:
            A tensor of the same shape, with the row of rank r as row r.
        """
        return self.all_gather(tensor, name=name)[self.rank :: self.size]

    @abstractmethod
    def broadcast(
        self, tensors: Sequence[Any], root_rank: int = 0, *, name: str
    ) -> list[Any]:
        """Send the tensors of one rank to all ranks.

        Args:
            tensors: Tensors of any number type, with the same shapes and types on
                every rank.
            root_rank: The rank that sends. Default 0.
            name: Name of the operation, the same on every rank.

        Returns:
            The root's tensors, bit for bit.

        Raises:
            ValueError: If no process has that rank.
        """

    @abstractmethod
    def exchange(self, name: str, value: Any, *, joint: bool = True) -> list[Any]:
        """Gather a small value from all ranks, outside of any graph.

        Args:
            name: Name of the exchange, the same on every rank.
            value: A value that JSON can hold.
            joint: Whether this is one of the calls that every rank makes in the same
                order; False for background threads. Default True.

        Returns:
            The values by rank.
        """

    def barrier(self, name: str = "barrier") -> None:
        """Wait until every rank has reached this call.

        Args:
            name: Name of the barrier, the same on every rank. Default "barrier".
        """
        self.exchange(f"barrier {name}", None)

    def call(self, what: str) -> AbstractContextManager[None]:
        """Mark a section of the program in which ranks may wait for each other.

        Args:
            what: Description of the section, the same on every rank; a `StepKind` if it
                runs steps of Keras.

        Returns:
            A context. An error that a failed peer caused is replaced by one that
            names the peer.
        """
        return nullcontext()


class ControlPlane:
    """Agreements of ranks, by exchanges of their collective.

    Tensors and graphs have no part in it. tfdist's own collectives have one that works
    by the connections of the ranks to rank 0.
    """

    def __init__(self, collective: Collective) -> None:
        self._collective = collective

    def gather(self, name: str, value: Any) -> list[Any]:
        """Gather a value of some KB from all ranks on rank 0.

        Args:
            name: Name of the exchange, the same on every rank.
            value: A value that JSON can hold.

        Returns:
            The values by rank on rank 0; on other ranks this list may be empty.
        """
        return self._collective.exchange(name, value)

    def tell(self, what: str, value: Any = True) -> None:
        """Tell the ranks that wait for the chief that it has done something.

        Args:
            what: Description, the same on every rank.
            value: What they get, a value that JSON can hold. Default True.
        """

    def wait_for_chief(self, what: str) -> Any:
        """Wait until the chief has told it, without the chief waiting for this rank.

        Args:
            what: Description, the same on every rank.

        Returns:
            The chief's value; False if the chief went on without telling it.
        """
        return True

    def stops_here(self, wishes: bool) -> bool:
        """Pass a point, such as the end of a step, at which all ranks may stop.

        No rank waits for the others unless one wishes to stop. Then all stop at the
        same point, which may be the next one.

        Args:
            wishes: Whether this rank wishes to stop.

        Returns:
            Whether all ranks stop at this point.
        """
        if self._collective.size == 1:
            return wishes
        return any(self._collective.exchange("stop", wishes))


class FusingCollective(Collective):
    """A collective that fuses tensors in flight itself, and so needs no buckets."""

    @abstractmethod
    def check_op(self, op: str) -> None:
        """Raise `ValueError` for an op that `all_reduce_as` cannot do in this job."""

    @abstractmethod
    def all_reduce_as(
        self,
        tensors: Sequence[Any],
        op: str,
        *,
        name: str,
        factors: tuple[float, float] = (1.0, 1.0),
    ) -> list[Any]:
        """Combine float tensors of one type as a group, sent when all are computed.

        `op` is "average", "sum" or "adasum"; the first two are both sums. `factors`
        scale the tensors before the reduction and the results after it.
        """


def name_in_graph(name: str) -> str:
    """Return a unique name by position in the graph, equal on all ranks."""
    # Ranks may retrace at different times, so a counter of the process would differ.
    if tf.executing_eagerly():
        return name
    graph = tf.compat.v1.get_default_graph()
    # Branches and loops have their own graphs, which run in parallel.
    while (outer := getattr(graph, "outer_graph", None)) and outer.building_function:
        graph = outer
    # A graph may contain several replicas, each with its own count.
    replica = tf.distribute.get_replica_context()
    prefix = "tfdist/" if replica is None else f"tfdist/{number_of(replica)}/"
    # Without Keras's scopes, whose layer counters may differ on the chief.
    with graph.name_scope(None):
        return graph.unique_name(prefix + name).removeprefix(prefix)


def to_tensor(value: Any) -> Any:
    """Convert a value to a tensor; `tf.IndexedSlices` stay as they are."""
    is_slices = isinstance(value, tf.IndexedSlices)
    return value if is_slices else tf.convert_to_tensor(value)


def join_slices(parts: Sequence[Any]) -> Any:
    """Concatenate `tf.IndexedSlices` of one tensor."""
    return tf.IndexedSlices(
        tf.concat([part.values for part in parts], 0),
        tf.concat([part.indices for part in parts], 0),
        parts[0].dense_shape,
    )


def map_values(function: Callable[[Any], Any], tensor: Any) -> Any:
    """Apply a function to a tensor, or to the values of `tf.IndexedSlices`."""
    if not isinstance(tensor, tf.IndexedSlices):
        return function(tensor)
    values = function(tensor.values)
    return tf.IndexedSlices(values, tensor.indices, tensor.dense_shape)


def check_reduction(reduction: str) -> None:
    """Raise `ValueError` for an unknown reduction."""
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"reduction must be one of {', '.join(REDUCTIONS)}. "
            f"Received: reduction={reduction!r}. Use 'sum' to add over the ranks."
        )


def check_root_rank(root_rank: int, size: int) -> None:
    """Raise `ValueError` for a rank that does not exist."""
    if not 0 <= root_rank < size:
        raise ValueError(
            f"root_rank must be from 0 to {size - 1}. Received: root_rank={root_rank}. "
            "Use 0 for the chief."
        )


def check_reducible(tensor: Any, reduction: str) -> None:
    """Raise an error for a tensor that cannot be reduced, also in a single process."""
    check_reduction(reduction)
    dtype = tensor.dtype
    is_ordered = reduction in ("min", "max")
    if isinstance(tensor, tf.IndexedSlices) and is_ordered:
        raise ValueError(
            "tf.IndexedSlices can be reduced by 'sum' and 'mean' only. Received: "
            f"reduction={reduction!r}. Densify them with tf.convert_to_tensor."
        )
    is_number = dtype.is_floating or dtype.is_integer
    if not (is_number or (dtype.is_bool and is_ordered)):
        raise TypeError(
            f"all_reduce needs tensors of a number type for {reduction!r}. "
            f"Received: {dtype.name}. Cast the tensor first."
        )


def check_has_rows(tensor: Any, name: str) -> None:
    """Raise `ValueError` for a scalar, which has no rows to gather."""
    if tensor.shape.rank == 0:
        raise ValueError(
            f"all_gather needs a tensor with rows. Received: a scalar ({name!r}). "
            "Add a dimension, for example with tensor[tf.newaxis]."
        )


def check_options(options: Any, *honoured: str) -> None:
    """Raise `ValueError` for `tf.distribute` options of one call, but `honoured`."""
    if options is None:
        return
    # `InputOptions` are a named tuple, `CommunicationOptions` an ordinary object.
    given, default = (
        one._asdict() if isinstance(one, tf.distribute.InputOptions) else vars(one)
        for one in (options, type(options)())
    )
    changed = [
        f"{name}={value}"
        for name, value in given.items()
        if name not in honoured and value != default[name]
    ]
    if changed:
        raise ValueError(
            "This strategy cannot honour these options of a single call. Received: "
            f"{', '.join(changed)}. Leave them out; give buckets, timeouts and the "
            "transport to the strategy when you make it."
        )
