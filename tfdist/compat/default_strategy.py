"""The places at which a program starts TensorFlow, or makes a strategy."""

import pkgutil
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib as _distribute_lib

from tfdist.compat.patching import wrap

# What initializes the devices, and what keeps the current strategy even before.
# Deletable when TensorFlow can be told its default strategy.
STARTS = (
    "tensorflow.python.eager.context:Context.ensure_initialized",
    "tensorflow.python.ops.variables:VariableMetaclass.__call__",
    "tensorflow:distribute.get_strategy",
    "tensorflow:distribute.has_strategy",
)


def call_before_start(function: Callable[[], None]) -> None:
    """Call a function whenever the program is about to start TensorFlow, or has."""

    def replacement(original: Any, *args: Any, **kwargs: Any) -> Any:
        function()
        return original(*args, **kwargs)

    for symbol in STARTS:
        owner, _, name = symbol.rpartition(".")
        wrap(pkgutil.resolve_name(owner), name, replacement)


def refuse_others(refuse: Callable[[type], None]) -> None:
    """Call a function with the class of each strategy that is about to be made."""
    # TensorFlow makes its default strategy when it is first asked for.
    tf.distribute.get_strategy()

    def make(kind: type, *_: Any, **__: Any) -> Any:
        refuse(kind)
        return object.__new__(kind)

    _distribute_lib.StrategyBase.__new__ = make
