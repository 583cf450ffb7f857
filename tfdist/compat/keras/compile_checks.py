"""Compilation of models: loss scaling, XLA, rejected options, and caveats."""

import inspect
from typing import Any

import keras

from tfdist.cluster import facts
from tfdist.compat.keras.hooks import any_hooks_of_model
from tfdist.compat.keras.learning_rates import optimizers_of
from tfdist.compat.keras.optimizer import adopt, sum_before_overrides
from tfdist.compat.keras.own_reduction import optimizers_in, reduces_by_itself
from tfdist.compat.owned_variables import owners_of
from tfdist.compat.patching import holding
from tfdist.compat.user_warnings import warn_user
from tfdist.sharding.optimizers import check_shardable

_OF_KERAS_2 = "experimental_run_tf_function"


def compile_for_strategy(
    original: Any, self: Any, optimizer: Any = "rmsprop", *args: Any, **kwargs: Any
) -> None:
    """Compile with tfdist's loss scaling, then let the strategy check the model."""
    if kwargs.pop(_OF_KERAS_2, None) is not None and facts.is_chief():
        warn_user(
            f"Keras 3 has no {_OF_KERAS_2}. Received: {_OF_KERAS_2} in compile, as in "
            "scripts of Horovod for Keras 2. Leave it out: a wrapped optimizer always "
            "reduces gradients."
        )
    hooks = any_hooks_of_model(self)
    if hooks is not None:
        optimizer = keras.optimizers.get(optimizer)
    original(self, optimizer, *args, **kwargs)
    if hooks is not None and self.optimizer is not optimizer:
        # Keras has wrapped it in its own loss scaling.
        self.optimizer = hooks.scale_loss_of(optimizer)
    given = inspect.signature(original).bind(self, optimizer, *args, **kwargs)
    asked = given.arguments.get("jit_compile", "auto")
    if asked == "auto" and not self.run_eagerly:
        _tell_of_no_xla(self)
    # On a GPU Keras uses XLA by default.
    if reduces_by_itself(self.optimizer) and self.jit_compile:
        if asked is True:
            raise ValueError(
                "XLA cannot compile a step that talks to other ranks. Received: "
                f"jit_compile=True and a distributed {self.optimizer.name}. Leave "
                "jit_compile out, or train under tfdist.strategies.HorovodStrategy, "
                "which compiles what lies between."
            )
        self.jit_compile = False
    if hooks is not None and self.optimizer is not None:
        owners = owners_of(self.distribute_strategy)
        if owners is not None and owners.shards_optimizers:
            check_shardable(self.optimizer, owners)
        # A callback may compile within a fit, which is not in the scope.
        with self.distribute_strategy.scope():
            adopt(self.optimizer)
            sum_before_overrides(self.optimizer)
    strategy = getattr(self, "_distribute_strategy", None)
    if (check := getattr(strategy, "check_compiled", None)) is not None:
        check(self)


def choose_xla(original: Any, self: Any) -> bool:
    """Choose what jit_compile="auto" means: on GPUs XLA, as without a strategy."""
    can_compile = getattr(self._distribute_strategy, "can_compile", False)
    return _compiles_alone(self) if can_compile else original(self)


def _compiles_alone(model: Any) -> bool:
    """Return whether Keras compiles a model by default without a strategy."""
    with holding(model, "_distribute_strategy", None):
        return model._resolve_auto_jit_compile()


def _tell_of_no_xla(model: Any) -> None:
    """Warn that several devices of a process compute without XLA, unlike one."""
    strategy = model._distribute_strategy
    # Parameter servers refuse XLA.
    is_of_devices = hasattr(strategy, "can_compile") and (
        len(strategy.extended.worker_devices) > 1
    )
    if is_of_devices and _compiles_alone(model) and facts.is_chief():
        warn_user(
            "Keras compiles models for GPUs by XLA, but not for several devices of one "
            f"process. Received: jit_compile='auto' under {type(strategy).__name__}. "
            "Train under AllReduceStrategy, with a process for each device, or pass "
            "jit_compile=False."
        )


# Clipping precedes the sum over replicas; the others synchronize replicas in a branch
# of a graph, which TensorFlow rejects.
_OPTIONS = (
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "gradient_accumulation_steps",
    "use_ema",
)


def options_done_wrong(model: Any) -> list[str]:
    """Return the options, e.g. "clipnorm=1.0", that need the hooks of tfdist."""
    found = []
    for held in optimizers_of(model):
        for optimizer in optimizers_in(held):
            if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                found.append("loss scaling")
            values = ((name, getattr(optimizer, name, None)) for name in _OPTIONS)
            found += [f"{name}={value!r}" for name, value in values if value]
    return found


def caveats(model: Any) -> list[str]:
    """Explain how a model on several processes differs from one on one process."""
    return [*_of_layers(model), *_of_losses(model), *_of_metrics(model)]


def check_stateless(model: Any) -> None:
    """Raise `ValueError` for recurrent layers that keep a state for each row."""
    found = sorted(
        layer.name
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.RNN) and layer.stateful
    )
    if found:
        raise ValueError(
            "A stateful layer keeps a state for each row of a batch, whose rows are "
            f"split among the ranks. Received: stateful=True in {_some(found)}. "
            "Leave it out, or train in one process without a strategy."
        )


def is_built(model: Any) -> bool:
    """Return whether a model has its weights."""
    # A model without `call` is never built itself, but its parts are.
    parts = list(model._flatten_layers(include_self=False, recursive=False))
    return model.built or (bool(parts) and all(part.built for part in parts))


def has_all_weights(model: Any) -> bool:
    """Return whether no layer is left that creates weights when it is called."""
    return all(
        layer.built or type(layer).build is keras.layers.Layer.build
        for layer in model._flatten_layers()
    )


def check_built(model: Any) -> None:
    """Raise `ValueError` if a model to predict with has no weights yet."""
    if not is_built(model):
        raise ValueError(
            f"The model {model.name!r} has no weights to predict with. Received: "
            "predict on a model that is not built. Call model.build, fit or "
            "evaluate first, or load weights."
        )


def synchronized_layers(model: Any) -> list[str]:
    """Return the names of layers that use statistics of the whole batch."""
    return [
        layer.name
        for layer in model._flatten_layers()
        if getattr(layer, "synchronized", False)
    ]


def normalizing_layers(model: Any, *, synchronized: bool = True) -> list[str]:
    """Return the names of trainable batch normalizations; or without those in sync."""
    return [
        layer.name
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization)
        and (synchronized or not layer.synchronized)
        and layer.trainable
    ]


def _of_layers(model: Any) -> list[str]:
    """Describe layers that use statistics of one rank's rows."""
    apart = normalizing_layers(model, synchronized=False)
    if not apart:
        return []
    return [
        "Batch normalization takes the statistics of each replica's own rows in "
        f"{_some(sorted(apart))}. Make it with synchronized=True to take those of the "
        "whole batch."
    ]


def _of_losses(model: Any) -> list[str]:
    """Describe losses that are not a mean over rows."""
    found = []
    for loss in keras.tree.flatten(getattr(model, "loss", None)):
        if isinstance(loss, str):
            # Names of a mean, which only `compile` knows: the data choose the class.
            if loss.lower() in ("crossentropy", "ce"):
                continue
            loss = keras.losses.get(loss)
        is_ratio = isinstance(loss, keras.losses.Dice | keras.losses.Tversky)
        if loss in (keras.losses.dice, keras.losses.tversky) or (
            is_ratio and loss.axis is None
        ):
            found.append(
                "The loss is a ratio over the rows of each process. Give it an axis "
                "without the rows, such as axis=(1, 2, 3)."
            )
        elif isinstance(loss, keras.losses.Circle) or loss is keras.losses.circle:
            found.append(
                "The loss compares rows with one another, and each process has only "
                "its own to compare. A larger batch for each process comes nearer."
            )
    return found


def _of_metrics(model: Any) -> list[str]:
    """Describe metrics whose state is not in variables, as far as they are built."""
    compiled = getattr(model, "_compile_metrics", None)
    metrics = compiled.metrics if compiled is not None and compiled.built else ()
    apart = [one.name for one in metrics if not one.variables]
    if not apart:
        return []
    return [
        f"Each rank has other results of the metrics {_some(sorted(apart))}, from its "
        "own rows. Keep their state in variables, by add_variable."
    ]


def _some(names: list[str]) -> str:
    """List the first three names."""
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")
