"""Recording of the inputs and results of each training step."""

import hashlib
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat.draws import alike_in_all_rows
from tfdist.compat.owned_variables import owner_of
from tfdist.compat.tensorflow import global_seed
from tfdist.data.sharding import Shard
from tfdist.experimental.virtual_ranks import arithmetic_of
from tfdist.first_step.comparison import Cause
from tfdist.observing import Observer, StopTraining
from tfdist.verify.recording import Entry, Layer, Recording, batch_of


def check_watchable(model: Any) -> None:
    """Raise `ValueError` for a model whose steps run in parts, out of sight."""
    arithmetic = arithmetic_of(model)
    if arithmetic is not None:
        raise ValueError(
            "tfdist verify cannot look into the parts of a step, and compares up to "
            f"rounding. Received: a strategy with {arithmetic}. Leave "
            "virtual_ranks out while you verify."
        )


class Watch(Observer):
    """Observer that records the inputs and results of each step."""

    allows_xla = False

    def __init__(self, rank: int, steps: int) -> None:
        self.recording = Recording(rank)
        self._wanted_steps = steps
        self._names = Names()
        self._step: _Step | None = None

    def datasets(
        self, distribute: Callable[[Any], Any], dataset_fn: Callable[[Any], Any]
    ) -> Any:
        """Record that the script shards its data itself."""
        self.recording.own_datasets = True
        return distribute(dataset_fn)

    @contextmanager
    def step(self, fn: Any, args: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Watch a step, and have its results recorded once computed."""
        trainer = getattr(fn, "__self__", None)
        model = trainer if isinstance(trainer, keras.Model) else None
        check_watchable(model)
        self._step = _Step(model, args[0] if args else None)
        with alike_in_all_rows():
            yield args
        self._end()

    @tf.autograph.experimental.do_not_convert
    def see_layer(self, layer: Any) -> None:
        """Record a layer of the step."""
        step = self._step
        if step is not None and not any(layer is other for other in step.layers):
            step.layers.append(layer)

    def see_cause(self, cause: Cause) -> None:
        """Record what the check of the first step has found."""
        self.recording.first_step = cause

    def see_update(self, optimizer: Any, gradients: Any, variables: list[Any]) -> None:
        """Record the outermost update of a step, and the optimizers inside of it."""
        step = self._step
        if step is None:
            # Under other strategies the strategy raises an error.
            if not tf.distribute.has_strategy():
                raise StopTraining
            return
        if not step.optimizers:
            if not self.recording.seeds:
                self.recording.seeds = current_seeds()
                # Read eagerly, even while a function is being traced.
                with tf.init_scope():
                    self.recording.initial = {
                        self._names.of(v): to_array(v) for v in variables
                    }
            step.variables += variables
            step.gradients = self._by_name(variables, gradients)
        if not any(optimizer is other for other in step.optimizers):
            step.optimizers.append(optimizer)

    @tf.autograph.experimental.do_not_convert
    def _end(self) -> None:
        """Stop watching a step, and have its results recorded once computed."""
        step, self._step = self._step, None
        if step is None or not step.optimizers:
            return
        self._add_forward_pass(step)
        self.recording.is_keras_step = step.model is not None
        entries, values = [], []
        for name, entry, variable in entries_of(
            step.model, step.layers, step.optimizers, step.variables
        ):
            entries.append((self._names.of(variable, name), entry))
            values.append(to_tensor(variable))
        leaves, own = step.batch()
        parts = [leaves, [] if own is None else [own], step.gradients, values]

        def take(*arrays: Any) -> None:
            self._take(tf.nest.pack_sequence_as(parts, list(arrays)), entries)

        tf.numpy_function(take, tf.nest.flatten(parts), [])
        self.see_return()

    def _add_forward_pass(self, step: "_Step") -> None:
        """Record the layers that a step has called."""
        recording = self.recording
        known = {name for layer in recording.layers for name in layer.variables}
        met = {layer.name for layer in recording.layers}
        for layer in step.layers:
            names = [self._names.of(variable) for variable in layer.weights]
            own = [name for name in names if name not in known]
            known.update(own)
            path, kind = path_of(layer), type(layer).__name__
            if path not in met or own:
                recording.layers.append(Layer(path, kind, layer.compute_dtype, own))
            is_norm = isinstance(layer, keras.layers.BatchNormalization)
            if is_norm and layer.trainable and not layer.synchronized:
                recording.batch_norms[path] = None

    def _take(self, parts: Any, entries: Any) -> None:
        """Record the arrays of a step, unless there are enough steps."""
        if self.recording.steps >= self._wanted_steps:
            return
        leaves, own, gradients, values = parts
        if not self.recording.gradients:
            copies = {name: np.array(array) for name, array in gradients.items()}
            self.recording.gradients = copies
        state = {
            name: (entry, np.asarray(value))
            for (name, entry), value in zip(entries, values, strict=True)
        }
        batch = batch_of(leaves, int(own[0]) if own else None)
        self.recording.end_step(batch, state, self._wanted_steps)

    def see_return(self) -> None:
        """Stop the script between two of its calls, after enough steps."""
        is_between = tf.executing_eagerly() and self._step is None
        is_script = threading.current_thread() is threading.main_thread()
        has_enough = self.recording.steps >= self._wanted_steps
        if is_between and is_script and has_enough:
            raise StopTraining

    def _by_name(self, variables: Any, gradients: Any) -> dict[str, Any]:
        """Return, by name, the gradients that exist at the end of the step."""
        return {
            self._names.of(variable): to_tensor(gradient)
            for variable, gradient in zip(variables, gradients, strict=False)
            if gradient is not None and _is_here(gradient)
        }


@dataclass
class _Step:
    """Data of one step, collected while it is traced or run eagerly."""

    model: Any  # None in a custom loop.
    data: Any
    optimizers: list[Any] = field(default_factory=list)
    variables: list[Any] = field(default_factory=list)
    gradients: dict[str, Any] = field(default_factory=dict)
    layers: list[Any] = field(default_factory=list)  # In the order their calls end.

    def batch(self) -> tuple[list[Any], Any]:
        """Return the tensors of the batch with rows, and the number of own rows."""
        is_shard = isinstance(self.data, Shard)
        tensors = [
            leaf.row_lengths() if isinstance(leaf, tf.RaggedTensor) else leaf
            for leaf in tf.nest.flatten(self.data.data if is_shard else self.data)
            if isinstance(leaf, tf.Tensor | tf.RaggedTensor | np.ndarray)
        ]
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        leaves = [t for t in tensors if t.dtype != tf.variant and t.shape.rank != 0]
        return leaves, self.data.own if is_shard else None


def current_seeds() -> list[str]:
    """Return TensorFlow's seed, and digests of Python's and NumPy's random states."""
    numpy_state: Any = np.random.get_state()
    texts = (repr(random.getstate()), repr(numpy_state[1:3]))
    digests = [hashlib.blake2b(text.encode(), digest_size=8) for text in texts]
    return [str(global_seed()), *(digest.hexdigest() for digest in digests)]


def _is_here(tensor: Any) -> bool:
    """Return whether a tensor belongs to the graph that is being built."""
    if tf.executing_eagerly():
        return True
    part = tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor
    return getattr(part, "graph", None) is tf.compat.v1.get_default_graph()


_SHORT_FLOATS = (tf.float16, tf.bfloat16)


class Names:
    """Unique names of variables, assigned at first use."""

    def __init__(self) -> None:
        # Keeps the variables alive, so that no other gets the id of one.
        self._names: dict[int, tuple[Any, str]] = {}
        self._taken: dict[str, int] = {}

    def of(self, variable: Any, name: str | None = None) -> str:
        """Return the unique name of a variable, derived from `name` or its path."""
        known = self._names.get(id(variable))
        if known is not None:
            return known[1]
        name = name or path_of(variable)
        count = self._taken[name] = self._taken.get(name, 0) + 1
        unique = name if count == 1 else f"{name}#{count}"
        self._names[id(variable)] = (variable, unique)
        return unique


def path_of(variable: Any) -> str:
    """Return the name that Keras or TensorFlow gives to a variable."""
    return str(getattr(variable, "path", None) or variable.name)


def entries_of(
    model: Any, layers: Sequence[Any], optimizers: Sequence[Any], applied: Sequence[Any]
) -> Iterator[tuple[str, Entry, Any]]:
    """Yield each variable of a step once, with its path and its entry."""
    # `model` is None in a custom loop; the optimizers update the variables `applied`.
    seen: set[int] = set()
    groups: list[tuple[str, Sequence[Any]]] = []
    if model is not None:
        groups.append(("metrics", model.metrics_variables))
        if model.optimizer is not None:
            groups.append(("optimizer", model.optimizer.variables))
    groups += [("optimizer", optimizer.variables) for optimizer in optimizers]
    groups.append(("weights", applied))
    for owner in [*([] if model is None else [model]), *layers]:
        groups.append(("weights", owner.trainable_variables))
        groups.append(("state", owner.variables))
    for kind, variables in groups:
        for variable in variables:
            if id(variable) in seen or not _is_comparable(variable):
                continue
            seen.add(id(variable))
            aggregation = str(getattr(variable, "aggregation", "none"))
            dtype = tf.as_dtype(variable.dtype).name
            yield path_of(variable), Entry(kind, dtype, aggregation), variable


def to_tensor(value: Any) -> Any:
    """Return a dense tensor of a dtype that NumPy has."""
    tensor = tf.convert_to_tensor(value)
    short = tensor.dtype in _SHORT_FLOATS
    return tf.cast(tensor, tf.float32) if short else tensor


def to_array(variable: Any) -> Any:
    """Return the current value of a variable."""
    return np.array(to_tensor(variable))


def _is_comparable(variable: Any) -> bool:
    """Return whether a variable holds numbers that should agree on all ranks."""
    if owner_of(variable) is not None:
        return False
    dtype = tf.as_dtype(variable.dtype)
    is_number = dtype.is_floating or dtype.is_integer or dtype.is_bool
    # A gradient accumulator holds each rank's own part of a sum.
    return is_number and "gradient_accumulator" not in path_of(variable)
