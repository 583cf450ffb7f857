"""The gradients that a step gives to optimizers, its new state and its metrics."""

import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from io import StringIO
from itertools import chain
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdist.collectives.base import map_values
from tfdist.compat.draws import alike_in_all_rows
from tfdist.compat.keras.learning_rates import leaf_optimizers, optimizers_of
from tfdist.compat.patching import holding
from tfdist.compat.undo import Assignments, kinds_of
from tfdist.training.step import state_of_layers

# So that a script's own clipping of gradients shows.
_AMPLIFICATION = 1e4
_SMALL_FLOATS = (tf.float16, tf.bfloat16)

# An optimizer, the variables and the gradients that it was given.
Update = tuple[Any, Sequence[Any], Sequence[Any]]


class Value(NamedTuple):
    """A tensor that a step computes."""

    kind: str  # "gradient", "squared gradient", "new value" or "result".
    name: str
    tensor: Any


class Observer:
    """The updates of a step, by thread, which it records instead of making them."""

    def __init__(
        self, trainer: Any, assignments: Assignments, sparse: Collection[str]
    ) -> None:
        self._trainer = trainer
        # The paths of weights whose slices ranks gather.
        self._sparse = sparse
        self._assignments = assignments
        self._updates: dict[int, list[Update]] = {}

    def note(self, update: Update) -> None:
        """Record an update."""
        self._updates.setdefault(threading.get_ident(), []).append(update)

    def values(self, states_of_metrics: Sequence[Any]) -> list[Value]:
        """Return what the step of this thread has computed."""
        updates = self._updates.pop(threading.get_ident(), [])
        return [
            *(value for update in updates for value in self._of_update(*update)),
            *self._of_state(),
            *self._of_metrics(states_of_metrics),
        ]

    def _of_update(
        self, optimizer: Any, variables: Sequence[Any], gradients: Sequence[Any]
    ) -> Iterator[Value]:
        """Yield the gradients of an update, and what an optimizer squares."""
        is_plain = isinstance(optimizer, keras.optimizers.SGD)
        for variable, gradient in zip(variables, gradients, strict=True):
            if gradient is None:
                continue
            name = getattr(variable, "path", variable.name)
            yield Value("gradient", name, tf.convert_to_tensor(gradient))
            if name in self._sparse and not is_plain:
                squares = map_values(lambda values: values**2, gradient)
                yield Value("squared gradient", name, tf.convert_to_tensor(squares))

    def _of_state(self) -> Iterator[Value]:
        """Yield the new state of layers, and weights that the step assigns itself."""
        weights = self._trainer.trainable_variables
        counts = state_of_layers(self._trainer, of_integers=True)
        state = [*state_of_layers(self._trainer), *counts, *weights]
        for variable in filter(self._is_assigned, state):
            name = getattr(variable, "path", variable.name)
            yield Value("new value", name, tf.identity(_copies_of(variable)[0]))
        known = [*self._trainer.variables, *self._trainer.metrics_variables, *state]
        yield from self._of_others({id(v) for one in known for v in _copies_of(one)})

    def _of_others(self, known: Collection[int]) -> Iterator[Value]:
        """Yield what the step assigns to variables that no layer holds."""
        of_metrics = tf.VariableAggregation.SUM
        for key, (variable, _) in self._assignments.before.items():
            is_other = key not in known and variable.aggregation != of_metrics
            if is_other and variable.dtype.is_floating:
                yield Value("new value", variable.name, variable.read_value())

    def _of_metrics(self, states: Sequence[Any]) -> Iterator[Value]:
        """Yield the results of metrics."""
        with keras.StatelessScope(state_mapping=states):
            for metric in self._metrics():
                if metric.variables:
                    for result in keras.tree.flatten(metric.result()):
                        tensor = tf.convert_to_tensor(result)
                        if tensor.dtype.is_floating:
                            yield Value("result", metric.name, tensor)

    def reset_metrics(self) -> None:
        """Give metrics their first state."""
        for metric in self._metrics():
            metric.reset_state()
            # A script's own may keep its state over epochs, by an empty method.
            if not any(map(self._is_assigned, metric.variables)):
                keras.metrics.Metric.reset_state(metric)

    def _metrics(self) -> Iterator[Any]:
        """Return the metrics of the model, one by one."""
        found = (getattr(each, "metrics", (each,)) for each in self._trainer.metrics)
        return chain.from_iterable(found)

    def _is_assigned(self, variable: Any) -> bool:
        """Return whether a variable has got a new value."""
        return any(id(v) in self._assignments.before for v in _copies_of(variable))


def _copies_of(variable: Any) -> Sequence[Any]:
    """Return the variables of TensorFlow in a variable."""
    raw = getattr(variable, "_value", variable)
    return getattr(raw, "_values", (raw,))


@contextmanager
def observing(
    trainer: Any, observer: Observer, reduce: Callable[..., Any]
) -> Iterator[None]:
    """Observe the steps of a block; `reduce(gradients, variables)` sums gradients.

    What may differ without being wrong is switched off: random numbers, statistics of
    one rank's rows, accumulation, loss scaling, clipping by optimizers, and output.
    """
    held = optimizers_of(trainer)
    optimizers = [o for one in held for o in (one, *leaf_optimizers(one))]
    norm = keras.layers.BatchNormalization
    with ExitStack() as stack:
        for replaced in (
            *_replaced_updates(observer, reduce, optimizers),
            *_replaced_scaling(),
            holding(norm, "call", _by_moving_statistics(norm.call)),
            holding(tf, "print", lambda *args, **kwargs: None),
            holding(sys, "stdout", StringIO()),
            alike_in_all_rows(),
            _amplified(),
        ):
            stack.enter_context(replaced)
        yield


def _replaced_updates(
    observer: Observer, reduce: Callable[..., Any], optimizers: Sequence[Any]
) -> Iterator[AbstractContextManager[None]]:
    """Yield replacements of what applies gradients, and of their accumulation."""

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        variables = [*(trainable_variables or self._trainable_variables)]
        observer.note((self, variables, reduce([*grads], variables)))

    def apply_gradients(self: Any, grads_and_vars: Any) -> None:
        gradients, variables = zip(*grads_and_vars, strict=True)
        apply(self, gradients, variables)

    derived = kinds_of(keras.optimizers.Optimizer)
    kinds = {kind for one in derived for kind in one.__mro__}
    for replacement in (apply, apply_gradients):
        name = replacement.__name__
        # Methods that tfdist has put around a user's own belong to the instance.
        for owner in (*kinds, *optimizers):
            if name in vars(owner):
                is_kind = isinstance(owner, type)
                bound = replacement if is_kind else partial(replacement, owner)
                yield holding(owner, name, bound)
    for optimizer in optimizers:
        if getattr(optimizer, "gradient_accumulation_steps", None):
            yield holding(optimizer, "gradient_accumulation_steps", None)


def _replaced_scaling() -> Iterator[AbstractContextManager[None]]:
    """Yield replacements of what scales losses."""
    for kind in kinds_of(keras.optimizers.LossScaleOptimizer):
        if "scale_loss" in vars(kind):
            yield holding(kind, "scale_loss", lambda self, loss: loss)


def _by_moving_statistics(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call that does not normalize by the rows of one rank."""

    def call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        is_apart = training and not self.synchronized
        return original(self, inputs, training=training and not is_apart, mask=mask)

    return call


@contextmanager
def _amplified() -> Iterator[None]:
    """Multiply the gradients of weights, as outermost tapes return them."""
    here = threading.local()
    tape = tf.GradientTape
    enter, leave, gradient = tape.__enter__, tape.__exit__, tape.gradient

    def push(self: Any) -> Any:
        here.depth = getattr(here, "depth", 0) + 1
        return enter(self)

    def pop(self: Any, *error: Any) -> Any:
        here.depth -= 1
        return leave(self, *error)

    def amplified(
        self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any
    ) -> Any:
        found = gradient(self, target, sources, *args, **kwargs)
        weights = keras.Variable | tf.Variable
        is_of_weights = all(isinstance(s, weights) for s in tf.nest.flatten(sources))
        is_inner = getattr(here, "depth", 0) > int(self._recording)
        if is_inner or not is_of_weights:
            return found
        return tf.nest.map_structure(_more, found)

    with (
        holding(tape, "__enter__", push),
        holding(tape, "__exit__", pop),
        holding(tape, "gradient", amplified),
    ):
        yield


def _more(gradient: Any) -> Any:
    """Multiply a gradient, unless its type could not hold it."""
    if gradient is None or gradient.dtype in _SMALL_FLOATS:
        return gradient
    factor = tf.cast(_AMPLIFICATION, gradient.dtype)
    return map_values(lambda values: values * factor, gradient)
