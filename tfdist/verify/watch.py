"""Watching Keras train: what each step gets and leaves, without changing the step."""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.strategies import AllReduceStrategy
from tfdist.verify.autograph import unseen
from tfdist.verify.forward import ForwardPass
from tfdist.verify.recorder import Recorder
from tfdist.verify.recording import Recording
from tfdist.verify.seeds import current_seeds
from tfdist.verify.step import WatchedStep
from tfdist.verify.stopping import StopTraining, refuse_plain_training
from tfdist.verify.variables import Names, entries_of, to_array, to_tensor


class Watch:
    """Puts itself between the script, Keras and the strategy.

    Args:
        recorder: What remembers.
        forward: What follows the forward pass.
        names: The names of variables.
    """

    def __init__(self, recorder: Recorder, forward: ForwardPass, names: Names) -> None:
        self._recorder = recorder
        self._forward = forward
        self._names = names
        self._step: WatchedStep | None = None

    def install(self) -> None:
        """Replace the entrances: steps, gradients, updates, calls of functions."""
        self._watch_run()
        self._watch_gradients()
        self._watch_updates()
        self._watch_functions()
        self._watch_datasets()
        _switch_jit_off(self._recorder.recording)

    def _watch_run(self) -> None:
        """Watch the strategy run a step."""
        original = AllReduceStrategy.run

        # No `do_not_convert` here: autograph has to reach the function that is run.
        def run(
            strategy: Any,
            fn: Any,
            args: Any = (),
            kwargs: Any = None,
            options: Any = None,
        ) -> Any:
            self._begin(fn, args)
            result = original(strategy, fn, args, kwargs, options)
            self._end()
            return result

        _replace(AllReduceStrategy, "run", run)

    def _watch_gradients(self) -> None:
        """Watch the loss and the gradients, before anybody touches them."""
        original = tf.GradientTape.gradient

        @unseen
        @functools.wraps(original)
        def gradient(
            tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any
        ) -> Any:
            result = original(tape, target, sources, *args, **kwargs)
            if self._step is not None and isinstance(sources, list | tuple):
                self._step.see_gradients(target, sources, result)
            return result

        _replace(tf.GradientTape, "gradient", gradient)

    def _watch_updates(self) -> None:
        """Watch what optimizers get, through either entrance."""
        optimizers = keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer
        for optimizer in optimizers:
            if "apply" in vars(optimizer) or optimizer is optimizers[0]:
                _replace(optimizer, "apply", self._watched_apply(optimizer.apply))
        original = keras.optimizers.Optimizer.apply_gradients

        # An optimizer that overrides `apply` is seen here.
        @unseen
        @functools.wraps(original)
        def apply_gradients(
            self_: Any, grads_and_vars: Any, *args: Any, **kwargs: Any
        ) -> Any:
            pairs = [*grads_and_vars]
            self._see_update(self_, [g for g, _ in pairs], [v for _, v in pairs])
            return original(self_, pairs, *args, **kwargs)

        _replace(optimizers[0], "apply_gradients", apply_gradients)

    def _watched_apply(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return an optimizer's `apply` that is watched."""

        @unseen
        @functools.wraps(original)
        def apply(
            self_: Any, grads: Any, trainable_variables: Any = None, **kwargs: Any
        ) -> Any:
            self._see_update(self_, grads, [*(trainable_variables or ())])
            return original(self_, grads, trainable_variables, **kwargs)

        return apply

    def _see_update(self, optimizer: Any, gradients: Any, variables: list[Any]) -> None:
        """Note the outermost update of a step, and the optimizers inside of it."""
        if self._step is None:
            refuse_plain_training(optimizer)
        elif not self._step.optimizers:
            self._recorder.start(self._values(variables), current_seeds())
            self._step.see_update(optimizer, gradients, variables)
        elif not any(optimizer is other for other in self._step.optimizers):
            self._step.optimizers.append(optimizer)

    def _watch_functions(self) -> None:
        """Stop the script after a call of a compiled function, when that is enough."""
        function = type(tf.function(lambda: None))
        original = function.__call__

        @functools.wraps(original)
        def call(self_: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self_, *args, **kwargs)
            self._stop_if_enough()
            return result

        _replace(function, "__call__", call)

    def _watch_datasets(self) -> None:
        """Note that the script shards its data itself."""
        original = AllReduceStrategy.distribute_datasets_from_function

        @functools.wraps(original)
        def distribute(strategy: Any, *args: Any, **kwargs: Any) -> Any:
            self._recorder.recording.own_datasets = True
            return original(strategy, *args, **kwargs)

        _replace(AllReduceStrategy, "distribute_datasets_from_function", distribute)

    @unseen
    def _begin(self, fn: Any, args: Sequence[Any]) -> None:
        """Begin to watch a step."""
        self._step = WatchedStep(fn, args[0] if args else None, self._names)
        self._forward.begin()

    @unseen
    def _end(self) -> None:
        """End a step: let its results be taken when it is computed."""
        step, self._step = self._step, None
        recording = self._recorder.recording
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
        """Hand the arrays of a step to the recorder, unless it has enough."""
        if self._recorder.has_enough:
            return
        leaves, own, loss, raw, applied, values = parts
        copies = [[np.array(array) for array in arrays] for arrays in (raw, applied)]
        for group, keys, arrays in zip(
            ("raw_gradients", "applied_gradients"), names, copies, strict=True
        ):
            self._recorder.take(group, dict(zip(keys, arrays, strict=True)))
        state = {
            name: (entry, np.asarray(value))
            for (name, entry), value in zip(entries, values, strict=True)
        }
        self._recorder.end_step(
            leaves,
            int(own[0]) if own else None,
            float(loss[0]) if loss else None,
            state,
        )

    def _stop_if_enough(self) -> None:
        """Leave the script, between two calls that it makes."""
        is_between = tf.executing_eagerly() and self._step is None
        is_script = threading.current_thread() is threading.main_thread()
        if is_between and is_script and self._recorder.has_enough:
            raise StopTraining

    def _values(self, variables: Sequence[Any]) -> dict[str, Any]:
        """Read variables as they are now, also while a function is being traced."""
        if self._recorder.recording.seeds:
            return {}
        with tf.init_scope():
            return {self._names.of(v): to_array(v) for v in variables}


def _switch_jit_off(recording: Recording) -> None:
    """Let models compile without XLA, in which nothing could be watched."""

    def note(model: Any, value: Any) -> None:
        del model
        recording.was_jitted = recording.was_jitted or value is True

    keras.Model.jit_compile = property(lambda model: False, note)


def _replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Put a function into the place of a method."""
    setattr(owner, name, function)
