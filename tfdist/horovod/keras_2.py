"""Names of Keras 2 that scripts for Horovod use, on Keras 3."""

import functools
from typing import Any

import keras
import tensorflow as tf

from tfdist.cluster import facts
from tfdist.compat.patching import wrap
from tfdist.compat.user_warnings import warn_user

_LEGACY_OPTIMIZERS = ("Adagrad", "Adam", "Ftrl", "RMSprop", "SGD")
# Arguments for the threads that read a generator; Keras 3 has them in PyDataset.
_OF_READERS = ("max_queue_size", "workers", "use_multiprocessing")
# Method of a Keras 2 model -> arguments after the generator, in order.
_OF_GENERATORS = {
    "fit": "steps_per_epoch epochs verbose callbacks validation_data validation_steps "
    "validation_freq class_weight max_queue_size workers use_multiprocessing shuffle "
    "initial_epoch",
    "evaluate": "steps callbacks max_queue_size workers use_multiprocessing verbose",
    "predict": "steps callbacks max_queue_size workers use_multiprocessing verbose",
}


@functools.cache
def accept_names_of_keras_2() -> None:
    """Make names of Keras 2 work in this process, each with a warning."""
    optimizer = keras.optimizers.Optimizer
    wrap(optimizer, "__init__", _init_with_old_arguments)
    for owner in (optimizer, keras.optimizers.LossScaleOptimizer):
        wrap(owner, "variables", _variables_to_call)
    optimizer.lr = property(_rate_of, _set_rate)
    optimizer.get_weights = lambda self: [one.numpy() for one in self.variables]
    keras.Variable.ref = lambda self: self.value.ref()
    for name, arguments in _OF_GENERATORS.items():
        method = functools.partialmethod(_call_with_generator, name, arguments.split())
        setattr(keras.Model, f"{name}_generator", method)
    for api in (keras, tf.keras):
        api.backend.get_value, api.backend.set_value = _get_value, _set_value
        legacy = api.optimizers.legacy
        for name in _LEGACY_OPTIMIZERS:
            vars(legacy).pop(name, None)
        legacy.__getattr__ = _legacy_optimizer
    wrap(keras.optimizers.legacy.Optimizer, "__init__", _refuse_legacy_optimizer)


class _CallableList(list[Any]):
    """Variables of an optimizer: a property of Keras 3, a method of Keras 2."""

    def __call__(self) -> list[Any]:
        _warn("optimizer.variables()", "optimizer.variables")
        return list(self)


def _init_with_old_arguments(
    original: Any, self: Any, learning_rate: Any, *args: Any, **kwargs: Any
) -> None:
    """Create an optimizer, with `lr` as its learning rate."""
    name = type(self).__name__
    if "lr" in kwargs:
        learning_rate = kwargs.pop("lr")
        _warn(f"{name}(lr=...)", f"{name}(learning_rate=...)")
    if decay := kwargs.pop("decay", None):
        raise ValueError(
            "Optimizers of Keras 3 have no decay of the learning rate. Received: "
            f"decay={decay!r} in {name}. Write learning_rate=keras.optimizers."
            f"schedules.InverseTimeDecay({learning_rate!r}, 1, {decay!r})."
        )
    original(self, learning_rate, *args, **kwargs)


def _variables_to_call(original: Any, self: Any) -> _CallableList:
    """Return an optimizer's variables; calling them returns them, too."""
    return _CallableList(original(self))


def _rate_of(optimizer: Any) -> Any:
    """Return the learning rate, as the TensorFlow variable it was in Keras 2."""
    rate = optimizer.learning_rate
    return rate.value if isinstance(rate, keras.Variable) else rate


def _set_rate(optimizer: Any, rate: Any) -> None:
    """Set the learning rate."""
    optimizer.learning_rate = rate


def _get_value(x: Any) -> Any:
    """Return the value of a variable or tensor as an array."""
    return keras.ops.convert_to_numpy(x)


def _set_value(x: Any, value: Any) -> None:
    """Assign to a Keras or TensorFlow variable."""
    x.assign(value)


def _call_with_generator(
    model: Any, name: str, names: list[str], generator: Any, *args: Any, **kwargs: Any
) -> Any:
    """Call `fit`, `evaluate` or `predict` with the arguments of Keras 2."""
    _warn(f"model.{name}_generator(...)", f"model.{name}(...)")
    given = dict(zip(names, args, strict=False)) | kwargs
    for option in given.keys() & set(_OF_READERS):
        value = given.pop(option)
        # Plain generators are read by one thread in Keras 3.
        if isinstance(generator, keras.utils.PyDataset):
            setattr(generator, option, value)
    if name != "fit":
        given.setdefault("verbose", 0)
    return getattr(model, name)(generator, **given)


def _legacy_optimizer(name: str) -> Any:
    """Return the Keras 3 class in place of one in `keras.optimizers.legacy`."""
    if name not in _LEGACY_OPTIMIZERS:
        raise AttributeError(f"module 'keras.optimizers.legacy' has no {name!r}")
    _warn(f"keras.optimizers.legacy.{name}", f"keras.optimizers.{name}")
    return getattr(keras.optimizers, name)


def _refuse_legacy_optimizer(original: Any, *args: Any, **kwargs: Any) -> None:
    """Refuse a class that was imported by its own name, which it does not tell."""
    raise ImportError(
        "Keras 3 has no keras.optimizers.legacy. Received: an optimizer imported from "
        "there. Import the one of the same name from keras.optimizers."
    )


def _warn(old: str, new: str) -> None:
    """Name the line to change, on the chief."""
    if facts.is_chief():
        warn_user(f"Keras 3 has no {old}. It is now {new}: write that instead.")
