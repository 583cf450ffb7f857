"""Recording of the inputs and results of each training step."""

import hashlib
import random
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat import watching
from tfdist.compat.draws import alike_in_all_rows
from tfdist.compat.keras.hooks import any_hooks_of_model
from tfdist.compat.tensorflow import global_seed
from tfdist.compat.watching import unseen
from tfdist.data.sharding import Shard
from tfdist.first_step import Cause, check
from tfdist.first_step.explanation import explained
from tfdist.strategies import AllReduceStrategy
from tfdist.verify.recording import Layer, Recording, batch_of
from tfdist.verify.script import StopTraining
from tfdist.verify.variables import Names, entries_of, path_of, to_array, to_tensor


def check_watchable(model: Any) -> None:
    """Raise `ValueError` for a model whose steps run in parts, out of sight."""
    hooks = any_hooks_of_model(model)
    if hooks is not None and hooks.arithmetic is not None:
        raise ValueError(
            "tfdist verify cannot look into the parts of a step, and compares up to "
            f"rounding. Received: a strategy with {hooks.arithmetic}. Add --bits, "
            "which compares bits."
        )


class Watch:
    """Observer of the script, of Keras and of the strategy in one process."""

    def __init__(self, rank: int, steps: int) -> None:
        self.recording = Recording(rank)
        self._wanted_steps = steps
        self._names = Names()
        self._step: _Step | None = None
        # What holds during a step.
        self._during_step = ExitStack()

    def install(self) -> None:
        """Patch Keras, TensorFlow and the strategy."""
        self._watch_steps()
        watching.replace(check, "explained", self._explained)
        watching.switch_jit_off()
        name = "distribute_datasets_from_function"
        distribute = getattr(AllReduceStrategy, name)

        def note_own_datasets(*args: Any, **kwargs: Any) -> Any:
            self.recording.own_datasets = True
            return distribute(*args, **kwargs)

        watching.replace(AllReduceStrategy, name, note_own_datasets)

    def _watch_steps(self) -> None:
        """Patch what runs the layers and updates of a step."""
        watching.watch_layers(self._leave)
        watching.watch_run(AllReduceStrategy, self._begin, self._end)
        watching.watch_updates(self._see_update)
        watching.watch_functions(self._stop_if_enough)

    @property
    def _has_enough(self) -> bool:
        return self.recording.steps >= self._wanted_steps

    @unseen
    def _leave(self, layer: Any, outputs: Any) -> None:
        """Record that the call of a layer ends."""
        del outputs
        step = self._step
        if step is not None and not any(layer is other for other in step.layers):
            step.layers.append(layer)

    def _explained(self, *found: Any, **options: Any) -> Cause:
        """Record what the check of the first step has found."""
        self.recording.first_step = cause = explained(*found, **options)
        return cause

    def _see_update(self, optimizer: Any, gradients: Any, variables: list[Any]) -> None:
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
                    self._take_initial(optimizer, variables)
            step.variables += variables
            step.gradients = self._by_name(variables, gradients)
        if not any(optimizer is other for other in step.optimizers):
            step.optimizers.append(optimizer)

    def _take_initial(self, optimizer: Any, variables: list[Any]) -> None:
        """Record the weights before the first update."""
        del optimizer
        self.recording.initial = {self._names.of(v): to_array(v) for v in variables}

    @unseen
    def _begin(self, fn: Any, args: Sequence[Any]) -> None:
        """Start watching a step."""
        trainer = getattr(fn, "__self__", None)
        model = trainer if isinstance(trainer, keras.Model) else None
        self._check(model)
        self._step = _Step(model, args[0] if args else None)

    def _check(self, model: Any) -> None:
        """Refuse a model whose steps this watch cannot observe, else prepare a step."""
        check_watchable(model)
        self._during_step.enter_context(alike_in_all_rows())

    @unseen
    def _end(self) -> None:
        """Stop watching a step, and have its results recorded once computed."""
        self._during_step.close()
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
        self._stop_if_enough()

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
        if self._has_enough:
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

    def _stop_if_enough(self) -> None:
        """Stop the script between two of its calls, after enough steps."""
        is_between = tf.executing_eagerly() and self._step is None
        is_script = threading.current_thread() is threading.main_thread()
        if is_between and is_script and self._has_enough:
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
