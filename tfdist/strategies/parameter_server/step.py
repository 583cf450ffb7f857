"""The step of a model as a pure function, whose results workers leave in slots."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.compat.keras.layers import momentum_of
from tfdist.compat.keras.losses_and_metrics import noted_results
from tfdist.compat.keras.pure_step import PureScope, captured
from tfdist.compat.keras.sharded import is_dynamic, shards_of, split_gradient
from tfdist.compat.keras.variables import note_raw
from tfdist.compat.parameter_server import LateValue
from tfdist.data.sharding import rows_of
from tfdist.gradients.sparse import ALIGNED, check_by_row, kind_of, with_sums_dense
from tfdist.sharding.optimizers import check_updates_dynamic
from tfdist.strategies.parameter_server.batch_codec import (
    BatchCodec,
    SlotLayout,
    StepResults,
    as_tensors,
    make_bundles,
    unpack_bundles,
    without_missing,
)
from tfdist.strategies.parameter_server.job import ServerJob
from tfdist.training.metrics import depends_on

_ROWS = tf.TensorSpec([3], tf.int64)
_HANDLE = tf.TensorSpec([], tf.resource)


class AssignedVariable(NamedTuple):
    """A Keras variable that steps assign, other than by the optimizer.

    `is_sum` says that the deltas of the slices of a batch are added, not averaged;
    `momentum` is the factor by which a step decays the value before adding its delta:
    that of a moving average, so that concurrent steps combine.
    """

    variable: Any
    is_sum: bool
    momentum: float = 1.0


class Writer(NamedTuple):
    """A concrete function that computes steps and fills slots, and its input codec."""

    codec: BatchCodec
    write: Any


class PureStep:
    """The step of a model, traced once for batches with any number of rows."""

    def __init__(self, job: ServerJob, trainer: Any, step: Any, spec: Any) -> None:
        self._job = job
        self._trainer = trainer
        self._step = step
        # The arguments of the optimizer: some variables may have no gradient.
        self.optimizer: Any = None
        self.variables: list[Any] = []
        self.has_gradient: list[bool] = []
        self.assigned: list[AssignedVariable] = []
        self.logs = StepLogs(trainer)
        self._spec = spec
        self._reads = VariableReads(job.version)
        function = tf.function(self._compute, autograph=False)
        self._function = function.get_concrete_function(self._spec, _ROWS)
        self._reads.end(self._function)
        outputs: StepResults = self._function.structured_outputs
        with tf.device(job.server_of_state):
            first = tf.zeros([self.logs.count], tf.float64)
            self.last_numbers = tf.Variable(first, trainable=False)
        self.layout = SlotLayout(self.weights, outputs, job.server_of_state)
        self._writers: dict[tuple[int, bool], Writer] = {}

    @property
    def weights(self) -> list[Any]:
        """The variables that have a gradient, or their shards."""
        pairs = zip(self.variables, self.has_gradient, strict=True)
        return [shard for v, has in pairs if has for shard in shards_of(v)]

    def compute(self, batch: Any, rows: tf.Tensor) -> StepResults:
        """Compute a step within a function that is being traced.

        `rows` is an int64 tensor: the rows of the batch, those of the whole batch that
        it is a slice of, and a number that differs among concurrent steps, 0 for the
        first.
        """
        with self._reads.reading():
            return self._function(batch, rows)

    def writer(self, count: int, *, is_packed: bool = True) -> Writer:
        """Return a function that computes `count` batches, traced on first use."""
        if (count, is_packed) not in self._writers:
            codec = BatchCodec([(self._spec, _ROWS)] * count, is_packed=is_packed)

            def write(payload: Any, separate: Any, slots: Any) -> None:
                steps = codec.decode(payload, separate)
                for (batch, rows), slot in zip(steps, slots, strict=True):
                    self.layout.write(self.compute(batch, rows), slot)

            function = tf.function(write, autograph=False).get_concrete_function(
                tf.TensorSpec([None], tf.uint8),
                codec.separate_specs,
                [[_HANDLE] * self.layout.size] * count,
            )
            self._writers[count, is_packed] = Writer(codec, function)
        return self._writers[count, is_packed]

    def reading_writer(self, spec: Any, count: int) -> Any:
        """Trace a function that computes `count` batches of an iterator of a spec."""

        def write(iterator: Any, numbers: Any, slots: Any) -> None:
            for number, slot in zip(tf.unstack(numbers, count), slots, strict=True):
                batch = as_tensors(without_missing(next(iterator)))
                rows = rows_of(batch)
                results = self.compute(batch, tf.stack([rows, rows, number]))
                self.layout.write(results, slot)

        return tf.function(write, autograph=False).get_concrete_function(
            tf.data.IteratorSpec(spec),
            tf.TensorSpec([count], tf.int64),
            [[_HANDLE] * self.layout.size] * count,
        )

    def _compute(self, batch: Any, rows: tf.Tensor) -> StepResults:
        """Trace the step of one batch."""
        version, begun = self._reads.begin()
        check_metrics(self._trainer)
        note_raw(self._trainer)
        metrics = list(self._trainer.metrics_variables)
        with (
            self._job.computing(rows),
            captured(self._trainer) as given,
            noted_results(self._trainer) as noted,
            PureScope(self._reads.value, begun, metrics) as scope,
        ):
            outputs = self._job.run(self._step, args=(batch,))
            self._note_arguments(given)
            self.assigned = []
            deltas = [self._delta(scope, v, metrics) for v in scope.assigned]
        self._check_state(batch, deltas)
        gradients = [
            part
            for one in given
            for gradient, variable in zip(one.gradients, one.variables, strict=True)
            if gradient is not None
            for part in split_gradient(self._addable(gradient, variable), variable)
        ]
        numbers = self.logs.note(outputs, noted)
        logs = tf.stack(numbers) if numbers else tf.zeros([0], tf.float64)
        return StepResults(gradients, deltas, logs, version, rows[0])

    def _addable(self, gradient: Any, variable: Any) -> Any:
        """Return a gradient in a form in which gradients of slices can be added."""
        if not self._job.is_sync:
            return gradient
        if is_dynamic(variable):
            check_by_row(gradient, variable.path)
            return gradient
        if kind_of(gradient) == ALIGNED:
            return tf.convert_to_tensor(gradient)
        return with_sums_dense(gradient)

    def _check_state(self, batch: Any, deltas: list[Any]) -> None:
        """Raise `ValueError` if the state of a slice may not be that of a batch."""
        if not self._job.is_sync:
            return
        leaves = tf.nest.flatten(batch, expand_composites=True)
        for (variable, is_sum, momentum), delta in zip(
            self.assigned, deltas, strict=True
        ):
            is_mean = variable.aggregation == "mean" and delta.dtype.is_floating
            is_known = is_sum or is_mean or momentum != 1.0
            if not is_known and depends_on(delta, leaves):
                raise ValueError(
                    "With consistency='sync' the state of a layer must say how the "
                    f"slices of a batch combine. Received: {variable.path}, which a "
                    "step computes from its batch, with aggregation="
                    f"{variable.aggregation!r}. Give add_weight aggregation='sum' for "
                    "what counts or adds up, 'mean' for averages over rows; for all "
                    "else use AllReduceStrategy."
                )

    def _note_arguments(self, given: list[Any]) -> None:
        """Record the arguments of the only call of an optimizer."""
        if len(given) > 1:
            raise ValueError(
                "A step must apply one optimizer, once, under parameter servers. "
                f"Received: {len(given)} calls in the train_step of the model "
                f"{self._trainer.name!r}. Join the losses, or use AllReduceStrategy."
            )
        for one in given:
            self.optimizer, self.variables = one.optimizer, one.variables
            for path in [v.path for v in one.variables if is_dynamic(v)]:
                check_updates_dynamic(one.optimizer, path)
            self.has_gradient = [g is not None for g in one.gradients]

    def _delta(self, scope: PureScope, variable: Any, metrics: list[Any]) -> Any:
        """Return the change of an assigned variable."""
        is_metric = any(variable is metric for metric in metrics)
        dtype = tf.as_dtype(variable.dtype)
        is_number = dtype.is_floating or dtype.is_integer
        if not is_number or any(variable is weight for weight in self.variables):
            raise ValueError(
                "A step must assign only numbers, and leave its weights to the "
                f"optimizer, under parameter servers. Received: {variable.path} of "
                f"type {dtype.name}, assigned by a step of {self._trainer.name!r}. "
                "Assign it in a callback."
            )
        momentum = momentum_of(self._trainer, variable)
        is_sum = is_metric or variable.aggregation == "sum"
        assigned = AssignedVariable(
            variable, is_sum, 1.0 if momentum is None else momentum
        )
        self.assigned.append(assigned)
        after = tf.cast(scope.get_current_value(variable), dtype)
        before = tf.cast(scope.before(variable), dtype)
        if momentum is not None:
            before *= tf.cast(momentum, dtype)
        return after - before


def check_metrics(trainer: Any) -> None:
    """Raise `ValueError` if the state of a metric is not a sum over the examples."""
    for metric in trainer.metrics:
        for variable in metric.variables:
            if variable.aggregation != "sum":
                raise ValueError(
                    "Parameter servers add up metric updates. Received: "
                    f"the metric {metric.name!r}, whose variable {variable.name!r} has "
                    f"aggregation={variable.aggregation!r}. Use a metric that sums "
                    "over examples, or AllReduceStrategy."
                )


class VariableReads:
    """The variables that a step reads, each read once and bundled by server.

    Only the complete trace shows which variables a step needs. So the trace contains
    placeholders, and the calling function reads all variables first, after `version`.
    """

    def __init__(self, version: tf.Variable) -> None:
        self._version = version
        self._variables: list[tf.Variable] = []
        self._late: list[LateValue] = []

    def begin(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Begin a trace; return the version, and a tensor that precedes all reads."""
        self._variables, self._late = [], []
        self._begun = LateValue(_spec_of(self._version))
        return self.value(self._version), self._begun.symbol

    def value(self, variable: tf.Variable) -> tf.Tensor:
        """Return the placeholder of an unsharded variable."""
        for known, late in zip(self._variables, self._late, strict=True):
            if known is variable:
                return late.symbol
        self._variables.append(variable)
        self._late.append(LateValue(_spec_of(variable)))
        return self._late[-1].symbol

    def end(self, function: Any) -> None:
        """End a trace with its concrete function, to be called within `reading`."""
        LateValue.bind(function, [self._begun, *self._late])

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read the variables for a call of the step in the block."""
        with tf.device(self._version.device):
            begun = self._version.read_value()
        devices = [variable.device for variable in self._variables]
        bundles = make_bundles(devices, [_spec_of(v) for v in self._variables])
        tensors = []
        for bundle in bundles:
            with tf.device(bundle.device), tf.control_dependencies([begun]):
                variables = [self._variables[member] for member in bundle.members]
                reads = [begun if v is self._version else _read(v) for v in variables]
                tensors.append(bundle.pack(reads))
        late_values = [self._begun, *self._late]
        values = [begun, *unpack_bundles(bundles, tensors)]
        for late, value in zip(late_values, values, strict=True):
            late.value = value
        try:
            yield
        finally:
            for late in late_values:
                late.value = None


def _read(variable: tf.Variable) -> tf.Tensor:
    """Read a variable on the current device, unnoticed by gradient tapes."""
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def _spec_of(variable: tf.Variable) -> Any:
    return tf.TensorSpec(variable.shape, variable.dtype)


class StepLogs:
    """The structure that a step returns: metric results, and other numbers.

    A metric result within a step covers one batch; it is replaced by the result over
    all applied steps.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._structure: Any = None
        # The metric and the key of its result for each leaf; None for other numbers.
        self._sources: list[Any] = []

    @property
    def count(self) -> int:
        """The number of leaves that are not metric results."""
        return self._sources.count(None)

    def note(self, outputs: Any, noted: list[Any]) -> list[tf.Tensor]:
        """Record the outputs of a traced step; return its other numbers as float64."""
        outputs = outputs if isinstance(outputs, dict) else {}
        leaves = tf.nest.flatten(outputs)
        self._structure = tf.nest.map_structure(lambda _: 0, outputs)
        self._sources = [
            next(((m, name) for value, m, name in noted if value is leaf), None)
            for leaf in leaves
        ]
        pairs = zip(leaves, self._sources, strict=True)
        return [self._number(leaf, noted) for leaf, source in pairs if source is None]

    def metric_results(self) -> list[tf.Tensor]:
        """Return the current results of the returned metrics, in their order."""
        results = []
        for metric, name in filter(None, self._sources):
            result = metric.result() if name is None else metric.result()[name]
            results.append(tf.convert_to_tensor(result))
        return results

    def fill(self, results: Sequence[Any], numbers: Any) -> dict[str, Any]:
        """Return the structure with metric results and an array of other numbers."""
        rest, others = iter(results), iter(numbers.tolist())
        leaves = [next(others if source is None else rest) for source in self._sources]
        return tf.nest.pack_sequence_as(self._structure, leaves)

    def _number(self, leaf: Any, noted: list[Any]) -> tf.Tensor:
        """Return a leaf as float64, or raise `ValueError`."""
        number = tf.convert_to_tensor(leaf)
        received = f"{number.dtype.name} of shape {number.shape}"
        is_number = number.dtype.is_floating or number.dtype.is_integer
        is_derived = depends_on(number, [value for value, *_ in noted])
        if is_derived:
            received = "a number computed from the metric result of one batch"
        if number.shape.rank != 0 or not is_number or is_derived:
            raise ValueError(
                "A step may return results of metrics as they are, and single numbers, "
                f"under parameter servers. Received: {received} from the model "
                f"{self._trainer.name!r}. Let a keras.metrics.Metric of the model "
                "compute it."
            )
        return tf.cast(number, tf.float64)
