"""Keras steps as pure functions that capture assignments and optimizer calls."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.backend.common.variables import initialize_all_variables

from tfdist.compat.divided_tables import look_up_divided
from tfdist.compat.keras.learning_rates import optimizers_of
from tfdist.compat.keras.sharded import ShardedValue, shards_of
from tfdist.compat.mirrored import outside
from tfdist.compat.owned_variables import DividedTable
from tfdist.compat.parameter_server import as_read
from tfdist.compat.patching import holding


class Applied(NamedTuple):
    """The arguments of a call of an optimizer, as Keras variables and gradients."""

    optimizer: Any
    gradients: list[Any]
    variables: list[Any]


class PureScope(keras.StatelessScope):
    """A scope that reads each variable once, by `read`, and keeps assigned values."""

    def __init__(
        self,
        read: Callable[[tf.Variable], tf.Tensor],
        begun: tf.Tensor,
        zeros: Sequence[Any],
    ) -> None:
        mapping = [(v, tf.zeros(v.shape, v.dtype)) for v in zeros]
        super().__init__(mapping, collect_losses=True, initialize_variables=False)
        self._read = read
        # A tensor that is computed before rows of variables are read.
        self._begun = begun
        self._graph = tf.compat.v1.get_default_graph()
        self._before: dict[int, Any] = {id(v): value for v, value in mapping}
        self._assigned: dict[int, Any] = {}

    @property
    def assigned(self) -> list[Any]:
        """The assigned variables, in the order of their first assignment."""
        return list(self._assigned.values())

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Keep an assigned value."""
        if update[0]._value is None:
            self._create_variables()
        self._assigned.setdefault(id(update[0]), update[0])
        super().add_update(update)

    def get_current_value(self, variable: Any) -> Any:
        """Return the assigned value, or else the value that was read."""
        if variable._value is None:
            self._create_variables()
        value = super().get_current_value(variable)
        if value is not None:
            return value
        # Gradient tapes around a branch record only its inputs.
        with self._graph.as_default():
            return as_read(variable._value, self.before(variable))

    def before(self, variable: Any) -> Any:
        """Return the value at the start of the step."""
        if id(variable) not in self._before:
            # Read in the outer graph, so that all branches can use the value.
            with self._graph.as_default():
                reads = [self._read(shard._value) for shard in shards_of(variable)]
                whole = tf.concat(reads, 0) if len(reads) > 1 else reads[0]
                self._before[id(variable)] = whole
        return self._before[id(variable)]

    def gather(self, variable: Any, indices: Any) -> Any:
        """Read rows of an unassigned variable, and transfer only these rows."""
        is_sharded = isinstance(variable._value, ShardedValue)
        if is_sharded and tf.compat.v1.get_default_graph() is not self._graph:
            # The gradient of a branch ignores operations recorded on tapes within it.
            return tf.gather(self.get_current_value(variable), indices)
        with tf.control_dependencies([self._begun]):
            return variable._value.sparse_read(indices)

    def look_up(self, variable: Any, ids: Any, *, is_training: bool) -> Any:
        """Look up rows for ids that are not known before."""
        if tf.compat.v1.get_default_graph() is not self._graph:
            # The gradient of a branch ignores operations recorded on tapes within it.
            raise ValueError(
                "A DynamicEmbedding cannot be called in a branch or a loop of a graph. "
                f"Received: a call for {variable.path} there. Call it outside."
            )
        with tf.control_dependencies([self._begun]):
            return variable._value.look_up(ids, is_training=is_training)

    def _create_variables(self) -> None:
        """Create the variables that the step has declared so far, eagerly."""

        def create(strategy: Any) -> None:
            with tf.init_scope(), strategy.scope():
                initialize_all_variables()

        # Within this scope Keras would only declare them.
        self.__exit__()
        try:
            tf.distribute.get_replica_context().merge_call(create)
        finally:
            self.__enter__()

    def is_assigned(self, variable: Any) -> bool:
        """Return whether the step has assigned a variable."""
        return id(variable) in self._assigned


def current_scope() -> PureScope | None:
    """Return the scope of the step that is being traced, if any."""
    scope = get_stateless_scope()
    return scope if isinstance(scope, PureScope) else None


@contextmanager
def captured(trainer: Any) -> Iterator[list[Applied]]:
    """Yield a list that collects calls of a model's optimizers; apply none of them."""
    given: list[Applied] = []

    def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> None:
        variables = trainable_variables or optimizer._trainable_variables
        given.append(Applied(optimizer, list(grads), list(variables)))

    with ExitStack() as stack:
        for optimizer in optimizers_of(trainer):
            collect = functools.partial(apply, optimizer)
            stack.enter_context(holding(optimizer, "apply", collect))
        yield given


def handle_of_read(original: Any, self: Any) -> Any:
    """Return the handle by which gradient tapes identify a variable."""
    if current_scope() is not None:
        return self._value.handle
    has_copies = isinstance(self._value, tf.distribute.DistributedValues)
    if has_copies and tf.distribute.in_cross_replica_context():
        raise outside(f"the gradient of {self.path}")
    return original(self)


def look_up_rows(original: Any, self: Any, inputs: Any) -> Any:
    """Look up rows like Keras, but transfer only these rows."""
    scope = current_scope()
    table = self._embeddings
    if isinstance(table, DividedTable) and not (
        self.lora_enabled or self.quantization_mode
    ):
        return look_up_divided(self, inputs)
    is_plain = isinstance(table, keras.Variable) and not self.lora_enabled
    if (
        not is_plain
        or self.quantization_mode
        or isinstance(inputs, tf.SparseTensor | tf.RaggedTensor)
        or (not _is_on_servers(table) if scope is None else scope.is_assigned(table))
    ):
        return original(self, inputs)
    indices = tf.convert_to_tensor(inputs)
    if indices.dtype not in (tf.int32, tf.int64):
        indices = tf.cast(indices, tf.int32)
    # As in Keras, a negative index counts from the end.
    indices = tf.where(indices < 0, indices + table.shape[0], indices)
    if scope is None:
        rows = table._value.sparse_read(indices)
    else:
        rows = scope.gather(table, indices)
    return tf.cast(rows, self.compute_dtype)


def look_up_dynamic(variable: Any, ids: tf.Tensor, *, is_training: bool) -> tf.Tensor:
    """Look up rows for ids that are not known before, outside of a step, too."""
    scope = current_scope()
    if is_training and not variable._value.table.is_on_servers:
        raise ValueError(
            "A DynamicEmbedding is trained by ParameterServerStrategy alone, whose "
            f"servers hold its rows. Received: a training step for {variable.path} "
            "without it. Build the model in the scope of that strategy, or set "
            "layer.trainable = False to train the rest of the model."
        )
    if scope is None:
        return variable._value.look_up(ids, is_training=is_training)
    return scope.look_up(variable, ids, is_training=is_training)


def _is_on_servers(variable: Any) -> bool:
    """Return whether a variable is on a parameter server, outside of a step."""
    if get_stateless_scope() is not None:
        return False
    device = getattr(variable._value, "device", None)
    return tf.DeviceSpec.from_string(device or "").job == "ps"
