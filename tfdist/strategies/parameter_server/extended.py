"""The strategy implementation: variables placed on servers, one replica per step."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.collectives.base import check_options
from tfdist.compat.parameter_server import PlacesVariables, ServerExtended
from tfdist.compat.patching import holding
from tfdist.compat.tensorflow import UpdateContext
from tfdist.strategies.parameter_server.job import CHIEF, SERVER
from tfdist.strategies.parameter_server.keras_hooks import ServerKerasHooks
from tfdist.strategies.parameter_server.worker_input import WorkerInput


class ParameterServerExtended(PlacesVariables, ServerExtended):
    """A strategy implementation that creates each variable on a server."""

    chief = CHIEF

    def __init__(
        self,
        strategy: Any,
        resolver: Any,
        hooks: ServerKerasHooks,
        partitioner: Callable[..., Sequence[int]] | None = None,
    ) -> None:
        super().__init__(strategy, resolver, None)
        self.keras_hooks = hooks
        self._partitioner = partitioner
        servers = resolver.cluster_spec().num_tasks("ps")
        self.servers = [SERVER.format(server) for server in range(servers)]
        self.placement = Placement(servers)
        # The name and size of the variable being created, and one to colocate it with.
        self._made: tuple[str, int, Any] | None = None

    def making(
        self, path: str, size_bytes: int, beside: Any = None
    ) -> AbstractContextManager[None]:
        """Announce the name and size of the variable that a block creates."""
        return holding(self, "_made", (path, size_bytes, beside))

    def sizes_of_shards(
        self, path: str, shape: tf.TensorShape, dtype: tf.DType
    ) -> list[int]:
        """Return the number of rows in each shard of a new variable."""
        if self._partitioner is None or shape.rank == 0 or shape.num_elements() == 0:
            return [1]
        shards = self._partitioner(shape=shape, dtype=dtype)
        return sizes_of_shards(path, shape.as_list(), shards)

    @property
    def _num_replicas_in_sync(self) -> int:
        """One: losses must not be divided by the number of workers."""
        return 1

    def _use_merge_call(self) -> bool:
        return False

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        neighbor = kwargs.pop("colocate_with", None)
        if self._made is None:
            # Only Keras announces the size of its variables.
            value = kwargs["initial_value"]
            value = tf.convert_to_tensor(
                value() if callable(value) else value, kwargs.get("dtype")
            )
            size_bytes = value.shape.num_elements() * value.dtype.size
            kwargs["initial_value"] = value
            self._made = (str(kwargs.get("name") or "variable"), size_bytes, None)
        name, size_bytes, shard = self._made
        neighbor = neighbor if shard is None else shard
        device = tf.DeviceSpec.from_string(getattr(neighbor, "device", ""))
        server = self.placement.place(
            name, size_bytes, device.task if device.job == "ps" else None
        )
        self._made = None
        with tf.device(None), tf.device(SERVER.format(server)):
            return next_creator(**kwargs)

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        if tf.inside_function():
            # Custom training loops with TensorFlow's coordinator.
            return super()._distribute_datasets_from_function(dataset_fn, options)
        check_options(options)
        return WorkerInput(dataset_fn, self._container_strategy().workers)

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        with tf.distribute.ReplicaContext(self._container_strategy(), 0):
            return fn(*args, **kwargs)

    def _replica_ctx_all_reduce(
        self, reduce_op: Any, value: Any, options: Any = None
    ) -> Any:
        check_options(options)
        return value

    def _replica_ctx_update(
        self, var: Any, fn: Any, args: Any = (), kwargs: Any = None, group: bool = True
    ) -> Any:
        return self._update(var, fn, args, kwargs or {}, group)

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        with tf.device(var.device), UpdateContext(var.device):
            result = fn(var, *args, **kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)


class Placed(NamedTuple):
    """A variable and the index of its server."""

    name: str
    size_bytes: int
    server: int


class Placement:
    """A plan that puts each new variable on the server that holds the fewest bytes.

    Args:
        servers: The number of servers.

    Example:
        >>> placement = Placement(2)
        >>> [placement.place(n, size) for n, size in (("a", 8), ("b", 4), ("c", 2))]
        [0, 1, 1]
        >>> print(placement)
        ps 0: 8 bytes in 1 variable
            8 a
        ps 1: 6 bytes in 2 variables
            4 b
            2 c
    """

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._placed: list[Placed] = []

    @property
    def placed(self) -> tuple[Placed, ...]:
        """All variables, in the order of their creation."""
        return tuple(self._placed)

    def bytes_of(self, server: int) -> int:
        """Return the number of bytes on a server.

        Args:
            server: The index of the server.

        Returns:
            The total size of its variables in bytes.
        """
        return sum(one.size_bytes for one in self._placed if one.server == server)

    def place(self, name: str, size_bytes: int, colocated: int | None = None) -> int:
        """Choose a server, `colocated` if given, and record the variable there."""
        server = min(range(self._servers), key=self.bytes_of)
        server = server if colocated is None else colocated
        self._placed.append(Placed(name, size_bytes, server))
        return server

    def __str__(self) -> str:
        lines = []
        for server in range(self._servers):
            mine = [one for one in self._placed if one.server == server]
            noun = "variable" if len(mine) == 1 else "variables"
            total = self.bytes_of(server)
            lines.append(f"ps {server}: {total:,} bytes in {len(mine)} {noun}")
            lines += [f"    {one.size_bytes:,} {one.name}" for one in mine]
        return "\n".join(lines)


def sizes_of_shards(name: str, shape: Sequence[int], shards: Any) -> list[int]:
    """Return the rows of each shard, from a partitioner's shards per axis."""
    shape = tuple(shape)
    counts = list(shards) if isinstance(shards, Sequence) else []
    is_right = len(counts) == len(shape) and all(
        isinstance(count, int) and count >= 1 for count in counts
    )
    if is_right and all(count == 1 for count in counts):
        return [shape[0]]
    if not is_right or any(n > 1 for n in counts[1:]) or counts[0] > shape[0]:
        wanted = ", ".join(["shards", *("1" for _ in shape[1:])])
        raise ValueError(
            "variable_partitioner must return the number of shards along each axis, "
            "and may split the rows only, of which each shard needs one. Received: "
            f"{shards!r} for {name} of shape {shape}. Return [{wanted}] here."
        )
    each, longer = divmod(shape[0], counts[0])
    return [each + (number < longer) for number in range(counts[0])]
