"""Patches of models: their start, steps and results."""

import contextlib
import functools
import inspect
import re
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras.callbacks import resuming_of, root_rank_of
from tfdist.compat.keras.compile_checks import (
    check_built,
    check_stateless,
    has_all_weights,
    is_built,
)
from tfdist.compat.keras.hooks import (
    any_hooks_of_model,
    current_hooks,
    current_step,
    hooks_of_model,
)
from tfdist.compat.keras.input import is_composite, spec_of
from tfdist.compat.keras.learning_rates import accumulates, optimizers_of, replaces
from tfdist.compat.keras.losses_and_metrics import share_results
from tfdist.compat.keras.optimizer import adopt, sum_before_overrides
from tfdist.compat.keras.own_reduction import reducing_in
from tfdist.compat.keras.positions import (
    current_position,
    has_random_seed,
    resumed_by,
)
from tfdist.compat.mirrored import building
from tfdist.compat.random_pipelines import (
    is_function_watched,
    rank_of_part,
    seed_in_map,
    seed_of,
)
from tfdist.compat.tensorflow import number_of
from tfdist.data.sharding import Shard

# What TensorFlow and Keras say of tensors that do not fit.
_OF_SHAPES = re.compile(
    "dimensions must be equal|incompatible shapes|same shape|not broadcastable"
    "|dimensions of inputs should match|shapes of all inputs must match",
    re.IGNORECASE,
)


def build_equal(
    original: Any, self: Any, iterator: Any = None, data_batch: Any = None
) -> None:
    """Build from the spec of the data, without reading it, and synchronize ranks."""
    # Other ranks may not build for a single batch, so this does not wait for them.
    if iterator is not None:
        _check_made_inside(self)
    hooks = any_hooks_of_model(self)
    if hooks is None and not _must_be_built_to_resume(self, iterator):
        original(self, iterator, data_batch)
        return
    if iterator is None:
        build(self, spec_of(data_batch))
        return
    iterator.trainer = self
    if iterator is getattr(self, "_eval_epoch_iterator", None):
        return  # A validation within fit: the model is built, and equal.
    if hooks is not None and hooks.has_peers:
        # Before Keras meets this rank's rows, and complains of their number.
        check_stateless(self)
    if _is_built_by_step(self):
        prepare_optimizers(self)
    else:
        spec = iterator._distributed_dataset.element_spec
        build(self, spec.data if isinstance(spec, Shard) else spec)
    if hooks is not None and not hooks.is_alone:
        hooks.build(self, is_single_step=False)


def build(model: Any, spec: Any) -> None:
    """Build a model, and what its compilation has made, for batches of a spec."""
    prepare_optimizers(model)
    with model.distribute_strategy.scope():
        _build(model, spec)


def prepare_optimizers(model: Any) -> None:
    """Let the optimizers of a model reduce gradients over its ranks."""
    with model.distribute_strategy.scope():
        for optimizer in optimizers_of(model):
            adopt(optimizer)
            sum_before_overrides(optimizer)


def _build(model: Any, spec: Any) -> None:
    """Build a model, unless only a step of its own can: one that never calls it."""
    if _needs_own_step(model) and _build_by_own_step(model, spec):
        return
    if not replaces(model, "call"):
        return
    try:
        if any(is_composite(leaf) for leaf in tf.nest.flatten(spec)):
            _build_by_tracing(model, spec)
        else:
            model._symbolic_build(data_batch=tf.nest.map_structure(_symbolic, spec))
    except Exception:
        # Its inputs may be others than the data, or it may be for eager execution
        # alone; if not, the step raises the same.
        if not (model.run_eagerly or replaces(model, "train_step", "test_step")):
            raise


def _is_built_by_step(model: Any) -> bool:
    """Return whether a step of the model's own is to build it."""
    # It may change the batch before the model, or call layers that `call` does not.
    is_custom = replaces(model, "train_step", "test_step")
    # A backup is restored before that. With accumulated gradients, state must exist
    # before the first step.
    return is_custom and current_position() is None and not accumulates(model)


def _needs_own_step(model: Any) -> bool:
    """Return whether variables are left that a step of the model's own may make."""
    is_complete = has_all_weights(model) and all(
        optimizer.built for optimizer in optimizers_of(model)
    )
    return replaces(model, "train_step") and not is_complete


def _build_by_own_step(model: Any, spec: Any) -> bool:
    """Build a model by tracing its own training step; return whether it could be."""
    is_traced = []

    def step(batch: Any) -> None:
        # A function that fails would leave variables without a value.
        with contextlib.suppress(Exception):
            model.train_step(batch)
            is_traced.append(True)

    with building():
        tf.function(step, autograph=False).get_concrete_function(spec)
    return bool(is_traced)


def _must_be_built_to_resume(model: Any, iterator: Any) -> bool:
    """Return whether a model must be built before its state is restored."""
    # Without a strategy of TensorFlow, Keras would build at the first step, too late.
    position = current_position()
    is_training = position is not None and position.is_read_by(iterator)
    return is_training and model._distribute_strategy is None


def _symbolic(spec: Any) -> Any:
    """Convert the spec of a tensor to a `KerasTensor`; None for an absent one."""
    if not isinstance(spec, tf.TensorSpec):
        return None
    return keras.KerasTensor(
        tuple(spec.shape), keras.backend.standardize_dtype(spec.dtype)
    )


def _build_by_tracing(model: Any, spec: Any) -> None:
    """Build a model, its losses, metrics and optimizer without data."""

    def step(batch: Any) -> None:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        y_pred = model(x, training=False)
        model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
        model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    with building():
        tf.function(step, autograph=False).get_concrete_function(spec)
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def _build_to_predict(model: Any, batch: Any) -> None:
    """Build a model that Keras would build in the first step of `predict`."""
    if not replaces(model, "call"):
        return
    spec = spec_of(batch)
    x, *_ = keras.utils.unpack_x_y_sample_weight(spec)
    function = tf.function(lambda x: model(x, training=False), autograph=False)
    with model.distribute_strategy.scope(), building():
        function.get_concrete_function(x)


def make_joint_function(original: Any, self: Any, step_function: Any) -> Any:
    """Wrap the steps that all ranks run together."""
    hooks = hooks_of_model(self)
    is_training = _is_train_step(self, step_function)
    if hooks is None:
        function = original(self, step_function)
        return _marked(function, self.optimizer) if is_training else function
    what = "train_step" if is_training else "test_step"
    if isinstance(step_function, tf.types.experimental.PolymorphicFunction):
        raise ValueError(
            f"The {what} of a model must be a plain function, which Keras compiles. "
            f"Received: a tf.function of the model {self.name!r}. Leave out the "
            "decorator @tf.function."
        )
    own = hooks.function_of(self, what, step_function)
    if own is not None:
        return own
    # XLA cannot compile a collective; the strategy compiles the code between them.
    is_compiled, self.jit_compile = self.jit_compile, False
    try:
        function = original(self, step_function)
    finally:
        self.jit_compile = is_compiled

    # Empty after the first step, and after the first that is checked.
    unprepared, unchecked = [True], [True]

    def call(iterator: Any) -> Any:
        is_single_step = not isinstance(iterator, tf.data.Iterator)
        if is_training and unprepared:
            # A callback may have given the model another optimizer.
            prepare_optimizers(self)
            unprepared.clear()
        if is_training and is_single_step:
            hooks.build(self, is_single_step=True)
        # Each rank may call test_on_batch by itself.
        is_joint = is_training or not is_single_step
        is_first = bool(unchecked) and not is_single_step
        is_first = is_first and (is_training or _may_measure_anew(self))
        run = functools.partial(function, iterator)
        logs = hooks.run_function(self, what, run, is_joint=is_joint, is_first=is_first)
        if is_first:
            unchecked.clear()
        return logs

    return call


def _may_measure_anew(model: Any) -> bool:
    """Return whether `evaluate` may compute what the training step has not shown."""
    is_own = replaces(model, "train_step", "test_step")
    return is_own or model.train_function is None


def _marked(function: Any, optimizer: Any) -> Any:
    """Mark the steps of an optimizer that reduces gradients itself, if it does."""
    reducing = reducing_in(optimizer)
    if reducing is None:
        return function

    def call(iterator: Any) -> Any:
        with reducing.joint_step("a training step"):
            return function(iterator)

    return call


def _is_train_step(model: Any, step_function: Any) -> bool:
    """Return whether a function is a model's training step, whatever its name."""
    return step_function == model.train_step


def make_function_under_strategy(original: Any, self: Any, step_function: Any) -> Any:
    """Reject a model without a strategy: each process would train its own."""
    if _is_train_step(self, step_function) and self._distribute_strategy is None:
        raise _made_outside(self, "each process would train one of its own")
    return original(self, step_function)


def _check_made_inside(model: Any) -> None:
    """Reject a model without a strategy in the scope of one, which gets its data."""
    hooks = current_hooks()
    if hooks is not None and model._distribute_strategy is None:
        processes = "each process would have one of its own"
        reason = processes if hooks.has_peers else "devices would share its variables"
        raise _made_outside(model, reason)


def _made_outside(model: Any, reason: str) -> RuntimeError:
    """Return the error for a model that was made without a strategy."""
    some = [f"{v.path} {tuple(v.shape)}" for v in model.trainable_variables[:3]]
    return RuntimeError(
        f"The model {model.name!r} was made outside of strategy.scope(): {reason}. "
        f"Received: variables {'; '.join(some) or 'none yet'}. Make and compile the "
        "model in a block `with strategy.scope():`."
    )


def make_joint_predict_function(original: Any, self: Any, force: bool = False) -> None:
    """Wrap the predictions that all ranks run together."""
    is_made = self.predict_function is not None and not force
    original(self, force)
    hooks = hooks_of_model(self)
    if hooks is None or is_made:
        return
    own = hooks.function_of(self, "predict_step", self.predict_step)
    if own is not None:
        self.predict_function = own
        return
    function = self.predict_function

    def call(data: list[Any]) -> Any:
        # Each rank may call predict_on_batch by itself.
        is_joint = isinstance(data[0], Shard)
        if is_joint and not is_built(self):
            _build_to_predict(self, data[0].data)
            check_built(self)
            with hooks.predicting(self):
                return call(data)
        run = functools.partial(function, data)
        return hooks.run_function(None, "predict_step", run, is_joint=is_joint)

    self.predict_function = call


def predict_equal(original: Any, self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Predict with the same weights on every rank."""
    _check_made_inside(self)
    hooks = hooks_of_model(self)
    if hooks is None:
        return original(self, x, *args, **kwargs)
    with hooks.predicting(self):
        return original(self, x, *args, **kwargs)


def fit_together(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Run `fit` with joint decisions of callbacks; resume if a callback says so."""
    hooks = hooks_of_model(self)
    try:
        given = inspect.signature(original).bind(self, *args, **kwargs).arguments
    except TypeError:
        # The error of Python names the function.
        return original(self, *args, **kwargs)
    callbacks = given.get("callbacks")
    with contextlib.ExitStack() as stack:
        if hooks is not None:
            if not hooks.is_alone:
                stack.enter_context(_noting_shapes())
            stack.enter_context(hooks.fitting(self, root_rank_of(callbacks)))
        resuming = resuming_of(callbacks)
        if resuming is not None:
            stack.enter_context(resumed_by(resuming, self))
        return original(self, *args, **kwargs)


@contextlib.contextmanager
def _noting_shapes() -> Iterator[None]:
    """Note at an error about shapes what a step has of a batch."""
    try:
        yield
    except (tf.errors.OpError, ValueError) as error:
        if _OF_SHAPES.search(str(error)):
            error.add_note(
                "tfdist: A step has its share of the rows of each batch, not all of "
                "them. Where it makes tensors for the rows, take their number from the "
                "data, as by tf.shape(x)[0]."
            )
        raise


def reduce_metrics(original: Any, self: Any, logs: Any) -> Any:
    """Compute the metrics from the states of all ranks."""
    position = current_position()
    if position is not None:
        logs = position.take_logs(logs)
    hooks = hooks_of_model(self)
    if hooks is None:
        return original(self, logs)
    # Some may be older than the strategy.
    share_results(self.metrics, hooks)
    return hooks.metrics_result(self, functools.partial(original, self), logs)


def next_seed_of_rank(original: Any, self: Any, ordered: bool = True) -> Any:
    """Draw a seed of this rank, and keep the generator's state equal on all ranks."""
    is_seeded = self.get_config()["seed"] is not None or has_random_seed()
    of_element = seed_in_map(is_seeded=is_seeded)
    if of_element is not None:
        return tf.cast(of_element, self.state.dtype)
    draw = functools.partial(original, self, ordered)
    if rank := rank_of_part():
        return seed_of(rank, draw())
    hooks = current_hooks()
    return draw() if hooks is None else hooks.draw_seed(draw, self.state)


def next_operation_seeds_of_rank(original: Any, op_seed: Any) -> Any:
    """Return the seeds of a random operation, which in a step differ between ranks."""
    hooks, number = current_hooks(), rank_of_part()
    draw = functools.partial(original, op_seed)
    seeds = draw() if hooks is None or number else hooks.draw_seed(draw, None)
    is_own = hooks is not None and not hooks.is_updating
    if is_own and not tf.distribute.in_cross_replica_context():
        number = number or number_of(tf.distribute.get_replica_context())
    if seeds[0] is None or number == 0:
        return seeds
    # Seeds of operations count up from zero, so the number goes above them.
    return seeds[0], seeds[1] ^ (number << 20 & 0x7FFFFFFF)


def call_anew_in_step(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Trace a `tf.function` that a step or dataset calls anew, or run it eagerly."""
    # A former trace would use its tensors or seeds, and report nothing to hooks.
    if current_step() is None and not is_function_watched():
        return original(self, *args, **kwargs)
    if tf.executing_eagerly():
        return self.python_function(*args, **kwargs)
    return original(self._clone(None), *args, **kwargs)
