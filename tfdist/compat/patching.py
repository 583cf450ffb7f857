"""Replacement of functions of other libraries, for good, and of values in a block."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

_MISSING = object()
_Value = TypeVar("_Value")


def wrap(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Replace a function or property; `replacement` gets the original first."""
    # A class may inherit it from one that other versions of Keras name differently.
    owner = next((c for c in getattr(owner, "__mro__", ()) if name in vars(c)), owner)
    original = getattr(owner, name)
    if isinstance(original, property):
        assert original.fget is not None, "it can be read"
        read = functools.partial(replacement, original.fget)
        setattr(owner, name, property(read, original.fset))
        return

    # With the module of the original, autograph converts neither of them.
    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    setattr(owner, name, replaced)


@contextmanager
def holding(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an object, class or module an attribute in a block, unseen by tracking."""
    before = vars(owner).get(name, _MISSING)
    _set(owner, name, value)
    try:
        yield
    finally:
        _set(owner, name, before)


def _set(owner: Any, name: str, value: Any) -> None:
    """Set an own attribute, or delete it."""
    if isinstance(owner, type):
        setattr(owner, name, value) if value is not _MISSING else delattr(owner, name)
    elif value is _MISSING:
        del vars(owner)[name]
    else:
        vars(owner)[name] = value


@contextmanager
def within(variable: ContextVar[_Value], value: _Value) -> Iterator[None]:
    """Give a context variable a value in a block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
