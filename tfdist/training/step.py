"""The Keras step that is being traced, or run eagerly, on one rank."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.base import Collective, check_options, name_in_graph, to_tensor
from tfdist.compat.keras.layers import is_normalized
from tfdist.compat.keras.learning_rates import (
    accumulates,
    learning_rate_variables,
    state_of_losses,
)
from tfdist.compat.keras.variables import raw_variables_of
from tfdist.compat.mirrored import assign_here, copies_here
from tfdist.compat.origins import needs_data
from tfdist.compat.owned_variables import owner_of
from tfdist.compat.tensorflow import is_in_branch_of, number_of
from tfdist.data.sharding import Shard, has_rows, rows_of
from tfdist.gradients.reducer import weigh


class Traced:
    """Code of a step that is being traced, or run eagerly.

    `is_numbered` tells whether the ranks compare the number of the step.
    """

    def __init__(self, *, is_numbered: bool = False) -> None:
        self._graph = current_graph()
        self.is_numbered = is_numbered

    def needs_number(self) -> bool:
        """Return whether the code being traced may not run in each step on each rank.

        In a function that the step calls it is unknown.
        """
        self.is_numbered |= is_in_branch_of(self._graph)
        return self.is_numbered


class Step(Traced):
    """One rank's part of a step.

    Each rank computes the mean over its own rows, weighted by its share of the rows of
    the global batch. `collective` is None in a step that only this rank runs.
    `has_rows` tells that this rank certainly has rows. `decisions` are what
    `as_traced` of the same step has returned in a graph.
    """

    def __init__(
        self,
        shard: Shard,
        trainer: Any,
        collective: Collective | None,
        *,
        has_rows: bool = False,
        decisions: Iterator[bool] | None = None,
    ) -> None:
        self.shard = shard
        self.trainer = trainer
        self._collective = collective
        self.has_rows = has_rows
        # Variables whose new values come from this rank's rows only, by id.
        self.assigned: dict[int, Any] = {}
        # The states of generators from which each rank has drawn its own numbers.
        self.drawn: list[Any] = []
        self._decisions_in_graph = decisions
        # What `as_traced` has returned in a graph.
        self.decisions: list[bool] = []
        # How often the ranks have agreed on layer state in this step.
        self.agreements = 0
        # A branch of eager code cannot be seen.
        super().__init__(is_numbered=self.is_joint and tf.executing_eagerly())

    @property
    def is_joint(self) -> bool:
        """True if all ranks run this step together."""
        return self._collective is not None

    @property
    def is_certain(self) -> bool:
        """True if the code being traced runs in every step, not in a branch."""
        return self._graph is current_graph()

    def compiled(self) -> AbstractContextManager[Any]:
        """Return a scope in which XLA compiles the step, if the model asks for it."""
        wanted = self.trainer is not None and self.trainer.jit_compile
        if not wanted or tf.executing_eagerly():
            return nullcontext()
        return tf.xla.experimental.jit_scope(separate_compiled_gradients=True)

    def has_sparse_data(self) -> bool:
        """Return whether the inputs contain a `tf.SparseTensor`."""
        leaves = tf.nest.flatten(self.shard.data)
        return any(isinstance(leaf, tf.SparseTensor) for leaf in leaves)

    def share(self) -> Any:
        """Return this rank's share of the global batch, a float64; 0 if it is empty."""
        own, rows = (tf.cast(n, tf.float64) for n in (self.shard.own, self.shard.rows))
        return tf.math.divide_no_nan(own, rows)

    def is_by_row(self, value: Any) -> bool:
        """Return whether the first dimension of a value is this rank's rows."""
        if tf.executing_eagerly():
            is_as_long = value.shape.rank and value.shape[0] == int(self.shard.own)
            return self.as_traced(bool(is_as_long))
        leaves = filter(has_rows, tf.nest.flatten(self.shard.data))
        length = value.shape[0] if value.shape.rank else 0
        # Not a regularizer's vector that happens to be as long.
        is_as_long = length in {leaf.shape[0] for leaf in leaves}
        return self.as_traced(is_as_long and needs_data(value))

    def as_traced(self, decision: bool) -> bool:
        """Return a decision, in a simulation of the step that of its trace.

        Eager code cannot see what a value was computed from.
        """
        if self._decisions_in_graph is not None:
            return next(self._decisions_in_graph, decision)
        if not tf.executing_eagerly():
            self.decisions.append(decision)
        return decision

    def sum(self, value: Any, what: str) -> Any:
        """Sum a float tensor over the ranks that have rows, without a gradient."""
        value = tf.stop_gradient(tf.convert_to_tensor(value))
        if self._collective is None:
            return value
        return self._sum([self._unless_empty(value)], what)[0]

    def all_reduce(self, values: Sequence[Any], *, is_mean: bool) -> list[Any]:
        """Reduce values that layers compute from their rows, such as batch statistics.

        After the backward pass, each rank's gradient is multiplied by its share. So the
        gradients from other ranks are multiplied here by those ranks' shares and, in a
        sum, divided by this rank's own: the result is the gradient of the whole batch's
        mean.
        """
        share = self.share()

        @tf.custom_gradient
        def reduce(*mine: Any) -> Any:
            if is_mean:
                mine = tuple(weigh(mine, share, is_positive=self.has_rows))
            sums = self._sum([self._unless_empty(value) for value in mine], "values")

            def backward(*upstream: Any) -> list[Any]:
                return self._gradients(upstream, is_mean=is_mean)

            return sums, backward

        return list(reduce(*values))

    def all_gather(self, value: Any, axis: int) -> Any:
        """Concatenate the rows of all ranks along an axis; a placeholder has none.

        The gradient is weighted by shares, like that of a sum in `all_reduce`.
        """
        assert self._collective is not None
        collective = self._collective
        if axis != 0:
            rows = self.all_gather(keras.ops.swapaxes(value, 0, axis), 0)
            return keras.ops.swapaxes(rows, 0, axis)
        value = self._own_rows(value)

        @tf.custom_gradient
        def gather(mine: Any) -> Any:
            def backward(upstream: Any) -> Any:
                (whole,) = self._gradients([upstream], is_mean=False)
                rows = tf.shape(mine)[:1]
                counts = collective.all_gather(rows, name=name_in_graph("counts"))
                start = tf.reduce_sum(counts[: collective.rank])
                return whole[start : start + rows[0]]

            return collective.all_gather(mine, name=name_in_graph("rows")), backward

        return gather(value)

    def note_assigned(self, variable: Any, value: Any = None) -> None:
        """Note that the step assigns a variable, unless all ranks assign the same."""
        if not self._is_same_on_ranks(variable, value):
            self.assigned[id(variable)] = variable

    def _is_same_on_ranks(self, variable: Any, value: Any) -> bool:
        """Return whether a value of layer state is of no rows, as averaged weights."""
        trainer = self.trainer
        if value is None or trainer is None:
            return False
        if is_weight(variable) and is_normalized(trainer, variable):
            return True
        # Other state is left apart while gradients accumulate, and the condition of a
        # branch may depend on data.
        is_apart = accumulates(trainer) and not is_weight(variable)
        if is_apart or tf.executing_eagerly() or not self.is_certain:
            return False
        metrics = trainer.metrics_variables
        if any(variable is metric for metric in metrics):
            return False
        # Ranks draw other numbers from the same state.
        handles = {
            id(copy.handle)
            for one in [*metrics, *self.assigned.values(), *self.drawn]
            for copy in copies_here(getattr(one, "_value", one))
        }
        parts = tf.nest.flatten(value, expand_composites=True)
        return not any(needs_data(tf.convert_to_tensor(p), handles) for p in parts)

    def state(self) -> list[Any]:
        """Return the `state_of_layers` that was assigned from this rank's rows."""
        if self.trainer is None or not self.is_joint:
            return []
        rates = learning_rate_variables(self.trainer)
        state = [*state_of_layers(self.trainer), *rates]
        return [variable for variable in state if id(variable) in self.assigned]

    def reducible(self) -> list[Any]:
        """Return what all ranks may have to reduce: layer state, and weights after it.

        Nothing if there is no layer state, and this step assigns no weights and no
        learning rates itself.
        """
        weights = [
            v
            for v in self.trainer.trainable_variables
            if tf.as_dtype(v.dtype).is_floating and owner_of(v) is None
        ]
        weights += learning_rate_variables(self.trainer)
        state = state_of_layers(self.trainer)
        is_needed = state or any(id(weight) in self.assigned for weight in weights)
        return [*state, *weights] if is_needed else []

    def mean(self, values: list[Any]) -> list[Any]:
        """Return the means of tensors over ranks, whatever their rows."""
        assert self._collective is not None
        return [
            total / tf.cast(self._collective.size, total.dtype)
            for total in self._sum(values, "state before the step")
        ]

    def sum_of_shares(self, values: list[Any]) -> list[Any]:
        """Return the means of tensors over ranks, weighted by rows."""
        return self._sum(weigh(values, self.share()), "state after the step")

    def reduced_state(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        """Assign layer state that was reduced over all ranks."""
        for variable, value in zip(variables, values, strict=True):
            assign_here(variable, value)
            self.assigned.pop(id(variable), None)

    def _unless_empty(self, value: Any) -> Any:
        """Return a value, or zero on a rank without rows."""
        if not self.shard.stand_in:
            return value
        return weigh([value], tf.logical_not(self.shard.stand_in[0]))[0]

    def _own_rows(self, value: Any) -> Any:
        """Return the rows of a value; none, or a zero summary, on an empty rank."""
        if not self.shard.stand_in:
            return value
        is_empty = self.shard.stand_in[0]
        if value.shape[0] is not None and not tf.executing_eagerly():
            # Rows have no static number; this is a summary, such as their number.
            return tf.where(is_empty, tf.zeros_like(value), value)
        return value[: tf.where(is_empty, 0, tf.shape(value)[0])]

    def _gradients(self, upstream: Sequence[Any], *, is_mean: bool) -> list[Any]:
        """Return the gradients of values whose mean or sum has gradients `upstream`."""
        share = self.share()
        dense = [tf.convert_to_tensor(gradient) for gradient in upstream]
        weighed = weigh(dense, share, is_positive=self.has_rows)
        totals = self._sum(weighed, "gradients of values")
        if is_mean:
            return totals
        return [
            tf.math.divide_no_nan(total, tf.cast(share, total.dtype))
            for total in totals
        ]

    def _sum(self, values: list[Any], what: str) -> list[Any]:
        """Sum tensors over ranks in one call."""
        assert self._collective is not None
        return self._collective.all_reduce(values, "sum", name=name_in_graph(what))


class LoopStep(Traced):
    """One rank's part of a call of `Strategy.run` in a custom loop.

    It gets the arguments of the call; the rows of their first tensor weigh this rank's
    state.
    """

    def __init__(self, args: Any) -> None:
        super().__init__()
        self._args = args
        self._assigned: dict[int, Any] = {}

    def note_assigned(self, variable: Any) -> None:
        """Note that the step assigns a variable."""
        is_metric = variable.aggregation == "sum"
        is_float = tf.as_dtype(variable.dtype).is_floating
        if is_float and not (variable.trainable or is_metric):
            self._assigned[id(variable)] = variable

    def take_state(self) -> list[Any]:
        """Return the float state of layers assigned so far, once."""
        state, self._assigned = [*self._assigned.values()], {}
        return state

    def weighed(self, state: Sequence[Any]) -> list[Any]:
        """Return the values of state times this rank's rows, then the rows."""
        number = number_of(tf.distribute.get_replica_context())
        copies = [copies_here(leaf) for leaf in tf.nest.flatten(self._args)]
        try:
            rows = rows_of([each[number % len(each)] for each in copies])
        except ValueError:
            rows = tf.constant(1)
        values = [tf.convert_to_tensor(variable) for variable in state]
        return [*weigh(values, rows), *(tf.cast(rows, v.dtype) for v in values[:1])]

    def assign_mean(self, state: Sequence[Any], sums: Sequence[Any]) -> None:
        """Assign the mean over all ranks, given the sums of `weighed`."""
        for variable, total in zip(state, sums, strict=False):
            variable.assign(total / tf.cast(sums[-1], total.dtype))
        self._assigned.clear()


def state_of_layers(trainer: Any, *, of_integers: bool = False) -> list[Any]:
    """Return the float or integer state of layers and losses, except metrics."""
    of_metrics = {id(variable) for variable in trainer.metrics_variables}
    variables = [*trainer.non_trainable_variables, *state_of_losses(trainer)]
    return [
        variable
        for variable in [*variables, *raw_variables_of(trainer)]
        if _is_of_type(tf.as_dtype(variable.dtype), of_integers)
        and id(variable) not in of_metrics
        # A frozen table, of which each rank has other rows.
        and owner_of(variable) is None
    ]


def _is_of_type(dtype: tf.DType, of_integers: bool) -> bool:
    """Return whether a type is one of integers, or else one of floats."""
    return bool(dtype.is_integer if of_integers else dtype.is_floating)


def is_weight(variable: Any) -> bool:
    """Return whether a variable is trained by optimizers, unless a step assigns it."""
    return isinstance(variable, keras.Variable) and bool(variable.trainable)


def current_graph() -> Any:
    """Return the graph that is being traced, or None in eager code."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


class WeighingReplicaContext(tf.distribute.ReplicaContext):
    """A replica context whose collectives weigh ranks by rows in a Keras step.

    Its gradients are those of one process, as synchronized batch normalization needs.
    """

    def __init__(self, strategy: Any, number: int, hooks: Any) -> None:
        super().__init__(strategy, replica_id_in_sync_group=number)
        self._hooks = hooks

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Reduce over all replicas; in a Keras step, means are weighted by rows."""
        check_options(options)
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

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """Concatenate values of all replicas; in a Keras step, those with rows."""
        check_options(options)
        step = self._hooks.step
        if step is None:
            return super().all_gather(value, axis, options)
        if not step.is_joint:
            return value
        return tf.nest.map_structure(
            lambda leaf: step.all_gather(tf.convert_to_tensor(leaf), axis), value
        )
