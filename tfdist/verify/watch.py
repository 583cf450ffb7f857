"""Recording of the inputs and results of each training step."""

import hashlib
import random
import threading
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat import watching
from tfdist.compat.tensorflow import global_seed
from tfdist.compat.watching import unseen
from tfdist.data.sharding import Shard
from tfdist.strategies import AllReduceStrategy
from tfdist.verify.recording import Layer, Recording, batch_of
from tfdist.verify.variables import Names, entries_of, path_of, to_array, to_tensor


class StopTraining(BaseException):
    """End of the script after enough steps; no `except Exception` catches it."""


class NotDistributedError(BaseException):
    """End of a script that trains outside of every strategy of tfdist."""


class Watch:
    """Observer of the script, of Keras and of the strategy in one process."""

    def __init__(self, rank: int, steps: int) -> None:
        self.recording = Recording(rank)
        self._wanted_steps = steps
        self._names = Names()
        self._forward = _ForwardPass(self._names)
        self._step: _Step | None = None

    def install(self) -> None:
        """Patch Keras, TensorFlow and the strategy."""
        recording, forward = self.recording, self._forward
        met: list[Any] = []

        def note_switched_off(layer: Any) -> None:
            if not any(layer is other for other in met):
                met.append(layer)
                recording.switched_off.append(path_of(layer))

        def note_jit() -> None:
            recording.was_jitted = True

        watching.switch_random_layers_off(note_switched_off)
        watching.watch_layers(forward.enter, forward.leave)
        watching.watch_draws(forward.draw)
        watching.watch_run(AllReduceStrategy, self._begin, self._end)
        watching.watch_gradients(self._see_gradients)
        watching.watch_updates(self._see_update)
        watching.watch_functions(self._stop_if_enough)
        watching.switch_jit_off(note_jit)
        distribute = AllReduceStrategy.distribute_datasets_from_function

        def note_own_datasets(strategy: Any, *args: Any, **kwargs: Any) -> Any:
            recording.own_datasets = True
            return distribute(strategy, *args, **kwargs)

        name = "distribute_datasets_from_function"
        watching.replace(AllReduceStrategy, name, note_own_datasets)

    @property
    def _has_enough(self) -> bool:
        return self.recording.steps >= self._wanted_steps

    def _see_gradients(self, target: Any, sources: Any, gradients: Any) -> None:
        """Record the loss and the gradients before the script changes them."""
        if self._step is not None and isinstance(sources, list | tuple):
            self._step.see_gradients(target, sources, gradients)

    def _see_update(self, optimizer: Any, gradients: Any, variables: list[Any]) -> None:
        """Record the outermost update of a step, and the optimizers inside of it."""
        if self._step is None:
            _refuse_plain_training(optimizer)
        elif not self._step.optimizers:
            if not self.recording.seeds:
                self.recording.seeds = current_seeds()
                # Read eagerly, even while a function is being traced.
                with tf.init_scope():
                    values = {self._names.of(v): to_array(v) for v in variables}
                self.recording.initial = values
            self._step.see_update(optimizer, gradients, variables)
        elif not any(optimizer is other for other in self._step.optimizers):
            self._step.optimizers.append(optimizer)

    @unseen
    def _begin(self, fn: Any, args: Sequence[Any]) -> None:
        """Start watching a step."""
        self._step = _Step(fn, args[0] if args else None, self._names)
        self._forward.begin()

    @unseen
    def _end(self) -> None:
        """Stop watching a step, and have its results recorded once computed."""
        step, self._step = self._step, None
        recording = self.recording
        self._forward.end(recording, is_training=bool(step and step.optimizers))
        if step is None or not step.optimizers:
            return
        recording.custom_steps = step.custom_steps
        recording.is_keras_step = step.model is not None
        entries, values = [], []
        for name, entry, variable in entries_of(
            step.model, self._forward.layers, step.optimizers, step.variables
        ):
            entries.append((self._names.of(variable, name), entry))
            values.append(to_tensor(variable))
        leaves, own = step.batch()
        parts = [
            leaves,
            [] if own is None else [own],
            [] if step.loss is None else [step.loss],
            list(step.raw.values()),
            list(step.applied.values()),
            values,
        ]
        names = [list(step.raw), list(step.applied)]

        def take(*arrays: Any) -> None:
            given = tf.nest.pack_sequence_as(parts, list(arrays))
            self._take(given, names, entries)

        tf.numpy_function(take, tf.nest.flatten(parts), [])
        self._stop_if_enough()

    def _take(self, parts: Any, names: Any, entries: Any) -> None:
        """Record the arrays of a step, unless there are enough steps."""
        if self._has_enough:
            return
        leaves, own, loss, raw, applied, values = parts
        groups = ("raw_gradients", "applied_gradients")
        for group, keys, arrays in zip(groups, names, (raw, applied), strict=True):
            if not getattr(self.recording, group):
                copies = [np.array(array) for array in arrays]
                setattr(self.recording, group, dict(zip(keys, copies, strict=True)))
        state = {
            name: (entry, np.asarray(value))
            for (name, entry), value in zip(entries, values, strict=True)
        }
        self.recording.end_step(
            batch_of(leaves, int(own[0]) if own else None),
            float(loss[0]) if loss else None,
            state,
            self._wanted_steps,
        )

    def _stop_if_enough(self) -> None:
        """Stop the script between two of its calls, after enough steps."""
        is_between = tf.executing_eagerly() and self._step is None
        is_script = threading.current_thread() is threading.main_thread()
        if is_between and is_script and self._has_enough:
            raise StopTraining


class _Step:
    """Tensors of one step, collected while it is traced or run eagerly."""

    def __init__(self, fn: Any, data: Any, names: Names) -> None:
        trainer = getattr(fn, "__self__", None)
        self.model = trainer if isinstance(trainer, keras.Model) else None
        self.optimizers: list[Any] = []
        self.variables: list[Any] = []
        self.loss: Any = None
        self.raw: dict[str, Any] = {}
        self.applied: dict[str, Any] = {}
        self._data = data
        self._names = names

    @property
    def custom_steps(self) -> list[str]:
        """The methods of Keras that the model overrides."""
        return [
            name
            for name in ("train_step", "compute_loss")
            if self.model is not None
            and getattr(type(self.model), name) is not getattr(keras.Model, name)
        ]

    def see_gradients(self, target: Any, sources: Any, gradients: Any) -> None:
        """Record the loss and the gradients of the first tape."""
        if self.raw:
            return
        self.raw = self._by_name(sources, gradients)
        if tf.is_tensor(target) and target.shape.rank == 0 and _is_here(target):
            self.loss = target

    def see_update(self, optimizer: Any, gradients: Any, variables: Any) -> None:
        """Record an optimizer, its variables and its gradients."""
        self.optimizers.append(optimizer)
        self.variables += variables
        self.applied = self._by_name(variables, gradients)

    def batch(self) -> tuple[list[Any], Any]:
        """Return the tensors of the batch with rows, and the number of own rows."""
        is_shard = isinstance(self._data, Shard)
        data = self._data.data if is_shard else self._data
        tensors = [
            leaf.row_lengths() if isinstance(leaf, tf.RaggedTensor) else leaf
            for leaf in tf.nest.flatten(data)
            if isinstance(leaf, tf.Tensor | tf.RaggedTensor | np.ndarray)
        ]
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        leaves = [t for t in tensors if t.dtype != tf.variant and t.shape.rank != 0]
        return leaves, self._data.own if is_shard else None

    def _by_name(self, variables: Any, gradients: Any) -> dict[str, Any]:
        """Return, by name, the gradients that exist at the end of the step."""
        return {
            self._names.of(variable): to_tensor(gradient)
            for variable, gradient in zip(variables, gradients, strict=False)
            if gradient is not None and _is_here(gradient)
        }


class _ForwardPass:
    """Layers that a step calls, in the order in which their calls end."""

    def __init__(self, names: Names) -> None:
        self.layers: list[Any] = []
        self._names = names
        self._is_in_step = False
        self._stack: list[Any] = []
        self._draws: list[str] = []

    def begin(self) -> None:
        """Start following a step."""
        self._is_in_step = True
        self._stack, self.layers, self._draws = [], [], []

    def end(self, recording: Recording, *, is_training: bool) -> None:
        """Stop following a step, and record it if it updates weights."""
        self._is_in_step = False
        if not is_training:
            return
        known = {name for layer in recording.layers for name in layer.variables}
        met = {layer.name for layer in recording.layers}
        for layer in self.layers:
            names = [self._names.of(variable) for variable in layer.weights]
            own = [name for name in names if name not in known]
            known.update(own)
            path, kind = path_of(layer), type(layer).__name__
            if path not in met or own:
                recording.layers.append(Layer(path, kind, layer.compute_dtype, own))
            is_norm = isinstance(layer, keras.layers.BatchNormalization)
            if is_norm and layer.trainable and not layer.synchronized:
                _add(recording.batch_norms, path)
        for draw in self._draws:
            _add(recording.draws, draw)

    @unseen
    def enter(self, layer: Any) -> None:
        """Record that the call of a layer begins."""
        if self._is_in_step:
            self._stack.append(layer)

    @unseen
    def leave(self, layer: Any) -> None:
        """Record that the call of a layer ends."""
        if self._is_in_step and self._stack:
            self._stack.pop()
            if not any(layer is other for other in self.layers):
                self.layers.append(layer)

    def draw(self, what: str) -> None:
        """Record that the innermost layer draws random numbers."""
        if not self._is_in_step:
            return
        where = "the training step, outside of any layer,"
        if self._stack:
            layer = self._stack[-1]
            where = f"the layer {path_of(layer)!r} ({type(layer).__name__})"
        self._draws.append(f"{where} with {what}")


def current_seeds() -> list[str]:
    """Return TensorFlow's seed, and digests of Python's and NumPy's random states."""
    numpy_state: Any = np.random.get_state()
    texts = (repr(random.getstate()), repr(numpy_state[1:3]))
    digests = [hashlib.blake2b(text.encode(), digest_size=8) for text in texts]
    return [str(global_seed()), *(digest.hexdigest() for digest in digests)]


def _refuse_plain_training(optimizer: Any) -> None:
    """Raise for training without a strategy; other strategies raise by themselves."""
    if not tf.distribute.has_strategy():
        raise NotDistributedError(
            f"the optimizer {optimizer.name!r} was applied outside of every strategy "
            "of tfdist"
        )


def _is_here(tensor: Any) -> bool:
    """Return whether a tensor belongs to the graph that is being built."""
    if tf.executing_eagerly():
        return True
    part = tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor
    return getattr(part, "graph", None) is tf.compat.v1.get_default_graph()


def _add(items: list[str], item: str) -> None:
    if item not in items:
        items.append(item)
