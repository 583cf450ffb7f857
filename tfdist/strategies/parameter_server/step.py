"""What a worker does: a step as a pure function, whose results are left on servers."""

from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.compat.keras.layers import momentum_of
from tfdist.compat.keras.losses_and_metrics import noted_results
from tfdist.compat.keras.pure_step import PureScope, captured
from tfdist.compat.keras.shards import shards_of, split_gradient
from tfdist.gradients.sparse import with_sums_dense
from tfdist.strategies.parameter_server.checks import check_metrics
from tfdist.strategies.parameter_server.parcels import Parcel
from tfdist.strategies.parameter_server.reads import Reads
from tfdist.strategies.parameter_server.returned import Returned
from tfdist.strategies.parameter_server.slots import Layout, Moved

_ROWS = tf.TensorSpec([3], tf.int64)
_HANDLE = tf.TensorSpec([], tf.resource)


class Results(NamedTuple):
    """What a step has computed, and not applied.

    Args:
        gradients: A tensor or `tf.IndexedSlices` for each variable that has one, or for
            each of its shards.
        moves: By how much each variable that was assigned has moved.
        logs: The numbers that the step returns beside results of metrics.
        version: How many updates the variables had seen when the step read them.
        rows: How many rows the step had.
    """

    gradients: list[Any]
    moves: list[tf.Tensor]
    logs: list[tf.Tensor]
    version: tf.Tensor
    rows: tf.Tensor


class Writer(NamedTuple):
    """What computes batches one after the other and leaves the results.

    Args:
        parcel: How the batches are sent, each with its rows, see `PureStep.compute`.
        write: A concrete function of what `parcel.pack` returns, and of the handles of
            a slot for each batch.
    """

    parcel: Parcel
    write: Any


class PureStep:
    """The step of a model, traced once for batches of any number of rows.

    Args:
        strategy: The strategy of the model.
        trainer: The model.
        step: Its `train_step` or `test_step`.
        spec: The spec of a batch, as `spec_of` returns it.
    """

    def __init__(self, strategy: Any, trainer: Any, step: Any, spec: Any) -> None:
        self._strategy = strategy
        self._trainer = trainer
        self._step = step
        # What the optimizer is given: a variable for each gradient, some without one.
        self.optimizer: Any = None
        self.variables: list[Any] = []
        self.has_gradient: list[bool] = []
        self.moved: list[Moved] = []
        self.returned = Returned(trainer)
        self._spec = spec
        self._reads = Reads(strategy.extended.version)
        function = tf.function(self._compute, autograph=False)
        self._function = function.get_concrete_function(self._spec, _ROWS)
        outputs: Results = self._function.structured_outputs
        self._reads.end(self._function)
        with tf.device(strategy.extended.server_of_state):
            first = tf.zeros([self.returned.count])
            self.last_numbers = tf.Variable(first, trainable=False)
        self.layout = Layout(self.weights, outputs, strategy.extended.server_of_state)
        self._writers: dict[tuple[int, bool], Writer] = {}

    @property
    def weights(self) -> list[Any]:
        """The variables that have a gradient; of those in shards, the shards."""
        pairs = zip(self.variables, self.has_gradient, strict=True)
        return [
            shard
            for variable, has_gradient in pairs
            if has_gradient
            for shard in shards_of(variable)
        ]

    def compute(self, batch: Any, rows: tf.Tensor) -> Results:
        """Compute a step, in a function that is being traced.

        Args:
            batch: The batch.
            rows: An int64 tensor of shape [3]: the rows of the batch, those of the one
                that it is a part of, and what tells the step from others that may be
                under way, 0 for the first.
        """
        with self._reads.reading():
            results: Results = self._function(batch, rows)
        return results

    def writer(self, count: int, *, is_packed: bool = True) -> Writer:
        """Return what computes a number of batches on a worker.

        Args:
            count: How many batches.
            is_packed: Whether the batches are sent as one tensor. Default True.
        """
        kind = count, is_packed
        if kind not in self._writers:
            parcel = Parcel([(self._spec, _ROWS)] * count, is_packed=is_packed)

            def write(packed: Any, beside: Any, slots: Any) -> None:
                steps = parcel.unpack(packed, beside)
                for (batch, rows), slot in zip(steps, slots, strict=True):
                    self.layout.write(self.compute(batch, rows), slot)

            function = tf.function(write, autograph=False).get_concrete_function(
                tf.TensorSpec([None], tf.uint8),
                parcel.beside,
                [[_HANDLE] * self.layout.size] * count,
            )
            self._writers[kind] = Writer(parcel, function)
        return self._writers[kind]

    def _compute(self, batch: Any, rows: tf.Tensor) -> Results:
        """Compute a step from one batch."""
        version, begun = self._reads.begin()
        check_metrics(self._trainer)
        metrics = list(self._trainer.metrics_variables)
        hooks = self._strategy.extended.keras_hooks
        with (
            hooks.computing(rows),
            captured(self._trainer) as given,
            noted_results(self._trainer) as noted,
            PureScope(self._reads.value, begun, metrics) as scope,
        ):
            outputs = self._strategy.run(self._step, args=(batch,))
            self._note(given)
            moves = []
            self.moved = []
            for variable in scope.assigned:
                moves.append(self._move(scope, variable, metrics))
        gradients = [
            part
            for one in given
            for gradient, variable in zip(one.gradients, one.variables, strict=True)
            if gradient is not None
            for part in split_gradient(self._addable(gradient), variable)
        ]
        logs = self.returned.note(outputs, noted)
        return Results(gradients, moves, logs, version, rows[0])

    def _addable(self, gradient: Any) -> Any:
        """Return a gradient so that the parts of a batch can be added up."""
        is_part = self._strategy.consistency == "sync"
        return with_sums_dense(gradient) if is_part else gradient

    def _note(self, given: list[Any]) -> None:
        """Keep what the step has given to its optimizer."""
        if len(given) > 1:
            raise ValueError(
                "A step must apply one optimizer, once, under parameter servers. "
                f"Received: {len(given)} calls in the train_step of the model "
                f"{self._trainer.name!r}. Join the losses, or use AllReduceStrategy."
            )
        for one in given:
            self.optimizer, self.variables = one.optimizer, one.variables
            self.has_gradient = [g is not None for g in one.gradients]

    def _move(self, scope: PureScope, variable: Any, metrics: list[Any]) -> Any:
        """Return by how much a step moves a variable."""
        is_metric = any(variable is metric for metric in metrics)
        dtype = tf.as_dtype(variable.dtype)
        if not (dtype.is_floating or dtype.is_integer):
            raise ValueError(
                "A step must not assign what cannot be added up, under parameter "
                f"servers. Received: {variable.path} of type {dtype.name}, assigned "
                f"by a step of {self._trainer.name!r}. Keep it outside of the step."
            )
        if any(variable is weight for weight in self.variables):
            raise ValueError(
                "A step must leave its weights to the optimizer, under parameter "
                f"servers. Received: {variable.path}, assigned by a step of "
                f"{self._trainer.name!r}. Assign it in a callback."
            )
        kept = momentum_of(self._trainer, variable)
        moved = Moved(variable, is_metric, 1.0 if kept is None else kept)
        self.moved.append(moved)
        after = tf.cast(scope.get_current_value(variable), dtype)
        before = tf.cast(scope.before(variable), dtype)
        return after - (before if kept is None else before * tf.cast(kept, dtype))
