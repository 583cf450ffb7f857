"""The step of Keras that is being traced, or run eagerly, on one rank."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from tfdist.collectives import Collective
from tfdist.collectives.base import name_in_graph, to_tensor
from tfdist.data.sharding import Shard
from tfdist.gradients import weigh


class Step:
    """One rank's part of a step.

    Each rank computes the mean over its own rows; its share of the global batch, the
    part of the rows that is its own, is what this mean weighs in the mean over all.

    Args:
        shard: The rows that the step works on; `rows` is known.
        trainer: The model whose step it is, None in predictions.
        collective: How the ranks talk; None in a step that this rank makes by itself.
        has_rows: Whether this rank is sure to have rows of its own. Default False.
    """

    def __init__(
        self,
        shard: Shard,
        trainer: Any,
        collective: Collective | None,
        *,
        has_rows: bool = False,
    ) -> None:
        self.shard = shard
        self.trainer = trainer
        self._collective = collective
        self.has_rows = has_rows
        # The variables that hold what the step made of this rank's rows, by id.
        self.assigned: dict[int, Any] = {}
        self._graph = _current_graph()

    @property
    def is_joint(self) -> bool:
        """Whether all ranks make this step together."""
        return self._collective is not None

    @property
    def is_certain(self) -> bool:
        """Whether what is traced now happens in every step, and not in a branch."""
        return self._graph is _current_graph()

    def compiled(self) -> AbstractContextManager[Any]:
        """Let XLA compile what follows, if the model wants it: all but collectives."""
        wanted = self.trainer is not None and self.trainer.jit_compile
        if not wanted or tf.executing_eagerly():
            return nullcontext()
        scope: AbstractContextManager[Any] = tf.xla.experimental.jit_scope(
            separate_compiled_gradients=True
        )
        return scope

    def has_sparse_data(self) -> bool:
        """Say whether a `tf.SparseTensor` is among the inputs."""
        leaves = tf.nest.flatten(self.shard.data)
        return any(isinstance(leaf, tf.SparseTensor) for leaf in leaves)

    def share(self) -> Any:
        """Return this rank's share of the global batch, a float64 scalar; 0 of none."""
        own, rows = (tf.cast(n, tf.float64) for n in (self.shard.own, self.shard.rows))
        return tf.math.divide_no_nan(own, rows)

    def sum(self, value: Any, what: str) -> Any:
        """Sum a value over the ranks that have rows; nothing flows back through it.

        Args:
            value: A float tensor of the same shape on every rank.
            what: What is summed.

        Returns:
            The sum, the same on every rank.
        """
        value = tf.stop_gradient(tf.convert_to_tensor(value))
        if self._collective is None:
            return value
        return self._sum([self._unless_empty(value)], what)[0]

    def all_reduce(self, values: Sequence[Any], *, is_mean: bool) -> list[Any]:
        """Reduce what layers compute from their rows, such as statistics of a batch.

        The gradient of each rank is weighed by its share after the backward pass. What
        comes back from other ranks is therefore weighed here by theirs, and divided by
        this rank's own, so that the gradient is that of the whole batch's mean.

        Args:
            values: Float tensors of the same shapes on every rank.
            is_mean: Whether to weigh each rank by its share, instead of adding up.

        Returns:
            The results, the same on every rank.
        """
        share = self.share()

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def reduce(*mine: Any) -> Any:
            if is_mean:
                mine = tuple(weigh(mine, share, is_positive=self.has_rows))
            sums = self._sum([self._unless_empty(value) for value in mine], "values")

            def backward(*upstream: Any) -> list[Any]:
                weighed = weigh(upstream, share, is_positive=self.has_rows)
                totals = self._sum(weighed, "gradients of values")
                if is_mean:
                    return totals
                return [
                    tf.math.divide_no_nan(total, tf.cast(share, total.dtype))
                    for total in totals
                ]

            return sums, backward

        return list(reduce(*values))

    def note_assigned(self, variable: Any) -> None:
        """Note that the step has assigned a variable."""
        self.assigned[id(variable)] = variable

    def state(self) -> list[int]:
        """Return which state of layers the step has assigned from its own rows.

        Returns:
            Positions in `state_of_layers` of the model, none in a step of one rank.
        """
        if self.trainer is None or not self.is_joint:
            return []
        variables = state_of_layers(self.trainer)
        return [i for i, v in enumerate(variables) if id(v) in self.assigned]

    def reduced_state(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        """Assign the state of layers over all ranks, in place of this rank's own."""
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
            self.assigned.pop(id(variable), None)

    def _unless_empty(self, value: Any) -> Any:
        """Return a value; zero on a rank without rows, whatever its stand-in gave."""
        if not self.shard.stand_in:
            return value
        has_rows = tf.cast(tf.logical_not(self.shard.stand_in[0]), value.dtype)
        return tf.math.multiply_no_nan(value, has_rows)

    def _sum(self, values: list[Any], what: str) -> list[Any]:
        """Sum tensors over ranks, as one."""
        assert self._collective is not None
        return self._collective.all_reduce(values, "sum", name=name_in_graph(what))


def state_of_layers(trainer: Any) -> list[Any]:
    """Return what the layers of a model keep beside their weights, in floats.

    These are moving statistics and their like: neither weights nor metrics, nor states
    of random seeds, which are equal on all ranks. Frozen weights are among them.
    """
    of_metrics = {id(variable) for variable in trainer.metrics_variables}
    return [
        variable
        for variable in trainer.non_trainable_variables
        if tf.as_dtype(variable.dtype).is_floating and id(variable) not in of_metrics
    ]


def _current_graph() -> Any:
    """Return the graph that is being traced, None in eager code."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


class WeighingReplicaContext(tf.distribute.ReplicaContext):  # type: ignore[misc]
    """A replica whose all-reduce weighs each rank by its rows, in a step of Keras.

    There gradients flow back as they would on one process, whatever part of the batch
    each rank has: synchronized batch normalization is built on it.

    Args:
        strategy: The public strategy.
        number: The number of the replica among those of all processes.
        hooks: Its side of the patches.
    """

    def __init__(self, strategy: Any, number: int, hooks: Any) -> None:
        super().__init__(strategy, replica_id_in_sync_group=number)
        self._hooks = hooks

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Reduce over all replicas; see `tf.distribute.ReplicaContext.all_reduce`.

        In a step of Keras a mean weighs each rank by its rows.
        """
        step = self._hooks.step
        flat = [to_tensor(leaf) for leaf in tf.nest.flatten(value)]
        is_float = all(
            isinstance(leaf, tf.Tensor) and leaf.dtype.is_floating for leaf in flat
        )
        if step is None or not is_float:
            return super().all_reduce(reduce_op, value, options)
        if not step.is_joint:
            return value
        operation = tf.distribute.ReduceOp
        is_mean = reduce_op in (operation.MEAN, operation.MEAN.name)
        return tf.nest.pack_sequence_as(value, step.all_reduce(flat, is_mean=is_mean))
