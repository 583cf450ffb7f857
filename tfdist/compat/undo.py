"""Assignments of variables that are undone, and random states that are put back.

Deletable when TensorFlow can run a function without its side effects.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from tensorflow.python.eager import context as _context
from tensorflow.python.ops import resource_variable_ops as _variables

from tfdist.compat.patching import holding

_PREFIXES = ("assign", "scatter_", "batch_scatter_", "_strided_slice_assign")


class Assignments:
    """The assignments of variables in a block, which are undone at its end."""

    def __init__(self) -> None:
        # Variables by id, each with its value before its first assignment.
        self.before: dict[int, tuple[Any, Any]] = {}
        self._assign = _variables.BaseResourceVariable.assign

    def set(self, variable: Any, value: Any) -> None:
        """Give a variable a value, unseen."""
        self._assign(variable, value)

    def undo(self) -> None:
        """Give all variables the values that they had before."""
        for variable, value in self.before.values():
            self.set(variable, value)

    def watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of variables that keeps their value before it assigns."""

        def method(variable: Any, *args: Any, **kwargs: Any) -> Any:
            if id(variable) not in self.before:
                self.before[id(variable)] = variable, variable.read_value()
            return original(variable, *args, **kwargs)

        return method


@contextmanager
def undone() -> Iterator[Assignments]:
    """Undo the assignments of all variables in a block, to the bit."""
    assignments = Assignments()
    with ExitStack() as stack:
        # Several classes have methods of their own.
        for kind in {*kinds_of(_variables.BaseResourceVariable)}:
            for name, method in [*vars(kind).items()]:
                if name.startswith(_PREFIXES) and callable(method):
                    watched = assignments.watched(method)
                    stack.enter_context(holding(kind, name, watched))
        try:
            yield assignments
        finally:
            assignments.undo()


def kinds_of(kind: type) -> Iterator[type]:
    """Yield a class and all classes derived from it."""
    yield kind
    derived: list[type] = kind.__subclasses__()
    for one in derived:
        yield from kinds_of(one)


def random_states() -> Any:
    """Return the states of Python's, NumPy's and TensorFlow's eager generators."""
    generator = getattr(_context.context(), "_rng", None)
    of_tensorflow = None if generator is None else generator.getstate()
    return random.getstate(), np.random.get_state(), of_tensorflow


def set_random_states(states: Any) -> None:
    """Set what `random_states` has returned."""
    of_python, of_numpy, of_tensorflow = states
    random.setstate(of_python)
    np.random.set_state(of_numpy)
    if of_tensorflow is not None:
        _context.context()._rng.setstate(of_tensorflow)
