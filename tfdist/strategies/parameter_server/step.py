"""What a worker does: a step as a pure function, whose results are left on servers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.compat.keras.metrics import noted_results
from tfdist.compat.keras.moving_averages import momentum_of
from tfdist.compat.keras.pure_step import PureScope, captured
from tfdist.compat.keras.shards import shards_of, split_gradient
from tfdist.gradients.sparse import with_sums_dense
from tfdist.strategies.parameter_server.checks import check_metrics
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
        self._spec = spec
        function = tf.function(self._compute, autograph=False)
        # Of a batch and its rows, see `writer`; it returns `Results`.
        self.function = function.get_concrete_function(self._spec, _ROWS)
        outputs: Results = self.function.structured_outputs
        self.numbers = len(outputs.logs)
        with tf.device(strategy.extended.server_of_state):
            self.last_numbers = tf.Variable(tf.zeros([self.numbers]), trainable=False)
        self.layout = Layout(self.weights, outputs, strategy.extended.server_of_state)
        self._writers: dict[int, Any] = {}

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

    def writer(self, count: int) -> Any:
        """Return what computes batches one after the other and leaves the results.

        Args:
            count: How many batches.

        Returns:
            A concrete function of a list of batches; for each an int64 tensor of shape
            [3]: its rows, those of the batch that it is a part of, and what tells it
            from others that may be under way, 0 for the first; and the handles of as
            many slots.
        """
        if count not in self._writers:

            def write(batches: Any, rows: Any, slots: Any) -> None:
                for batch, row, slot in zip(batches, rows, slots, strict=True):
                    self.layout.write(self.function(batch, row), slot)

            self._writers[count] = tf.function(
                write, autograph=False
            ).get_concrete_function(
                [self._spec] * count,
                [_ROWS] * count,
                [[_HANDLE] * self.layout.size] * count,
            )
        return self._writers[count]

    def _compute(self, batch: Any, rows: tf.Tensor) -> Results:
        """Compute a step from one batch."""
        version = self._strategy.extended.version.read_value()
        check_metrics(self._trainer)
        metrics = list(self._trainer.metrics_variables)
        hooks = self._strategy.extended.keras_hooks
        with (
            hooks.computing(rows),
            captured(self._trainer) as given,
            noted_results(self._trainer) as noted,
            PureScope(version, metrics) as scope,
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
        logs = self._note_outputs(outputs, noted)
        return Results(gradients, moves, logs, version, rows[0])

    def _addable(self, gradient: Any) -> Any:
        """Return a gradient so that the parts of a batch can be added up."""
        is_part = self._strategy.consistency == "sync"
        return with_sums_dense(gradient) if is_part else gradient

    def metric_results(self) -> list[tf.Tensor]:
        """Return the results of the metrics that the step returns, in their order."""
        results = []
        for metric, name in filter(None, self._sources):
            result = metric.result() if name is None else metric.result()[name]
            results.append(tf.convert_to_tensor(result))
        return results

    def as_returned(self, results: Sequence[Any], numbers: Any) -> dict[str, Any]:
        """Put results and numbers where the step has returned such.

        Args:
            results: As `metric_results`.
            numbers: As `Results.logs`.

        Returns:
            The structure that the step returns.
        """
        rest, others = iter(results), iter(numbers.tolist())
        leaves = [next(others if source is None else rest) for source in self._sources]
        logs: dict[str, Any] = tf.nest.pack_sequence_as(self._outputs, leaves)
        return logs

    def _note_outputs(self, outputs: Any, noted: list[Any]) -> list[tf.Tensor]:
        """Keep where a step returns results of metrics; return its other numbers."""
        outputs = outputs if isinstance(outputs, dict) else {}
        leaves = tf.nest.flatten(outputs)
        self._sources = [
            next(((m, name) for value, m, name in noted if value is leaf), None)
            for leaf in leaves
        ]
        self._outputs = tf.nest.map_structure(lambda _: 0, outputs)
        numbers = []
        for leaf, source in zip(leaves, self._sources, strict=True):
            if source is not None:
                continue
            number = tf.convert_to_tensor(leaf)
            self._check_no_metric(number, noted)
            if number.shape.rank != 0 or not (
                number.dtype.is_floating or number.dtype.is_integer
            ):
                raise ValueError(
                    "A step may return results of metrics and single numbers, under "
                    f"parameter servers. Received: {number.dtype.name} of shape "
                    f"{number.shape} from the model {self._trainer.name!r}. Let a "
                    "keras.metrics.Metric of the model add it up."
                )
            numbers.append(tf.cast(number, tf.float32))
        return numbers

    def _check_no_metric(self, number: tf.Tensor, noted: list[Any]) -> None:
        """Refuse a number that was computed from a metric, which has one batch here."""
        results = {id(value.op) for value, *_ in noted if isinstance(value, tf.Tensor)}
        seen, ahead = set[int](), [number.op]
        while ahead:
            operation = ahead.pop()
            if id(operation) in results:
                raise ValueError(
                    "A step may return results of metrics as they are, under parameter "
                    "servers: within a step they are those of one batch. Received: a "
                    "number computed from such a result in the model "
                    f"{self._trainer.name!r}. Make it a keras.metrics.Metric."
                )
            if id(operation) not in seen:
                seen.add(id(operation))
                ahead += [tensor.op for tensor in operation.inputs]

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
