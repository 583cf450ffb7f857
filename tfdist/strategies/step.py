"""The step of Keras that is being traced, or run eagerly, on one rank."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives import Collective
from tfdist.data.sharding import Shard
from tfdist.gradients import weigh
from tfdist.strategies.naming import name_in_graph


class Step:
    """One rank's part of a step.

    Each rank computes the mean over its own rows; its share of the global batch, the
    part of the rows that is its own, is what this mean weighs in the mean over all.

    Args:
        shard: The rows that the step works on; `rows` is known.
        trainer: The model whose step it is, None in predictions.
        collective: How the ranks talk; None in a step that this rank makes by itself.
    """

    def __init__(self, shard: Shard, trainer: Any, collective: Collective | None):
        self.shard = shard
        self.trainer = trainer
        self._collective = collective
        # What the step has assigned and no rank has reduced since, by id.
        self.assigned: dict[int, Any] = {}
        self.reduced: dict[int, Any] = {}

    @property
    def is_joint(self) -> bool:
        """Whether all ranks make this step together."""
        return self._collective is not None

    def has_sparse_data(self) -> bool:
        """Say whether a `tf.SparseTensor` is among the inputs."""
        leaves = tf.nest.flatten(self.shard.data)
        return any(isinstance(leaf, tf.SparseTensor) for leaf in leaves)

    def share(self) -> Any:
        """Return this rank's share of the global batch, a float64 scalar."""
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
        own, rows = self.shard.own, self.shard.rows

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def reduce(*mine: Any) -> Any:
            if is_mean:
                mine = tuple(weigh(mine, own, rows))
            sums = self._sum([self._unless_empty(value) for value in mine], "values")

            def backward(*upstream: Any) -> list[Any]:
                totals = self._sum(weigh(upstream, own, rows), "gradients of values")
                if is_mean:
                    return totals
                share = self.share()
                return [
                    tf.math.divide_no_nan(total, tf.cast(share, total.dtype))
                    for total in totals
                ]

            return sums, backward

        return list(reduce(*values))

    def note_assigned(self, variable: Any) -> None:
        """Note that the step has assigned a variable."""
        self.assigned[id(variable)] = variable

    def state(self) -> list[Any]:
        """Return the state of layers that the step has assigned from its own rows.

        These are moving statistics and their like: neither weights nor metrics, nor
        states of random seeds, which are equal on all ranks.
        """
        if self.trainer is None or not self.is_joint:
            return []
        apart = {id(variable) for variable in self.trainer.metrics_variables}
        return [
            variable
            for variable in self.trainer.non_trainable_variables
            if id(variable) in self.assigned.keys() - apart
            and tf.as_dtype(variable.dtype).is_floating
        ]

    def reduced_state(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        """Assign what the state of layers is over all ranks."""
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
            self.assigned.pop(id(variable), None)
            self.reduced[id(variable)] = variable

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
