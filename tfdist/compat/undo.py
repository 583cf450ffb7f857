"""Assignments of variables and attributes that are undone, and draws that are apart.

All of it is of the threads that are `apart`: others, which read data, go on as before.
Deletable when TensorFlow can run a function without its side effects.
"""

import random
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from tensorflow.python.eager import context as _context
from tensorflow.python.ops import resource_variable_ops as _variables

from tfdist.compat.patching import holding

# Containers. The methods of `dict` would break an OrderedDict, which comes first.
_KINDS: tuple[Any, ...] = list, set, deque, OrderedDict, dict
_PREFIXES = ("assign", "scatter_", "batch_scatter_", "_strided_slice_assign")


class _Here(threading.local):
    """The mark of a thread; see `apart`."""

    is_apart = False


_HERE = _Here()


@contextmanager
def apart() -> Iterator[None]:
    """Mark a block whose assignments are undone, and whose draws are apart."""
    with holding(_HERE, "is_apart", True):
        yield


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
            if _HERE.is_apart and id(variable) not in self.before:
                self.before[id(variable)] = variable, variable.read_value()
            return original(variable, *args, **kwargs)

        return method


@contextmanager
def undone() -> Iterator[Assignments]:
    """Undo the assignments of all variables in a block, to the bit."""
    assignments = Assignments()
    with apart(), ExitStack() as stack:
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


class Attributes:
    """The attributes of objects, with what lists, dictionaries and sets in them hold.

    They are what a model and its layers keep in Python, such as losses, or tensors of
    earlier steps.
    """

    def __init__(self, owners: Sequence[Any]) -> None:
        self._owners = owners

    def take(self) -> Sequence[tuple[Any, Any]]:
        """Return all containers, each with a copy of what it holds."""
        found: dict[int, tuple[Any, Any]] = {}
        for owner in self._owners:
            _note_containers(vars(owner), found)
        return [*found.values()]

    def put_back(self, taken: Sequence[tuple[Any, Any]]) -> None:
        """Give all containers what they held, if not the order of keys."""
        # By the methods of Python, unseen by tracking.
        for container, held in taken:
            kind: Any = type(held)
            if kind is list:
                list.__setitem__(container, slice(None), held)
            elif issubclass(kind, dict):
                for key in [key for key in container if key not in held]:
                    kind.__delitem__(container, key)
                kind.update(container, held)
            else:
                kind.clear(container)
                (kind.update if kind is set else kind.extend)(container, held)


def _note_containers(value: Any, found: dict[int, tuple[Any, Any]]) -> None:
    """Add a container, and those in it, with copies of what they hold."""
    # Not what only says that it is one.
    if not issubclass(type(value), _KINDS) or id(value) in found:
        return
    kind = next(kind for kind in _KINDS if issubclass(type(value), kind))
    held = kind(value)
    found[id(value)] = value, held
    for one in held.values() if isinstance(held, dict) else held:
        _note_containers(one, found)


class _ByThread:
    """A generator of random numbers; another one for threads that are apart."""

    def __init__(self, common: Any, own: Any) -> None:
        self._common, self._own = common, own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own if _HERE.is_apart else self._common, name)


@contextmanager
def drawing_apart() -> Iterator[None]:
    """Let threads that are apart draw from copies of the global generators.

    The generators are Python's, NumPy's, and TensorFlow's for eager operations.
    """
    of_numpy = np.random.RandomState()
    of_numpy.set_state(np.random.get_state())
    of_python = random.Random()
    of_python.setstate(random.getstate())
    with apart(), ExitStack() as stack:
        replaced = {**_by_thread(random, of_python), **_by_thread(np.random, of_numpy)}
        for module in [*sys.modules.values()]:
            # Also where a program has imported them by name.
            for name, function in [*getattr(module, "__dict__", {}).items()]:
                if id(function) in replaced:
                    stack.enter_context(holding(module, name, replaced[id(function)]))
        context = _context.context()
        if (common := getattr(context, "_rng", None)) is not None:
            own = random.Random()
            own.setstate(common.getstate())
            stack.enter_context(holding(context, "_rng", _ByThread(common, own)))
        yield


def _by_thread(module: Any, own: Any) -> dict[int, Callable[..., Any]]:
    """Return replacements of a module's random functions, by the ids of these."""
    # They are methods of a global object.
    return {
        id(function): _chosen(function, getattr(own, name))
        for name, function in vars(module).items()
        if type(getattr(function, "__self__", None)) is type(own)
    }


def _chosen(common: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls one of two: the second in threads that are apart."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return (own if _HERE.is_apart else common)(*args, **kwargs)

    return call


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
