"""Which functions can be found again in another process."""

import functools
import types

import pytest

from tfdist.launching.function.child import reference_to


def function():
    """Stand at the top of a module."""


class Group:
    @staticmethod
    def inner():
        """Stand in a class."""

    def method(self):
        """Need an object."""


def replaced():
    """Be hidden by the next definition."""


hidden = replaced


def replaced():  # noqa: F811
    """Hide the one before."""


@functools.wraps(function)
def wrapper():
    """Have another's name."""


def test_a_function_at_the_top():
    assert reference_to(function) == (__name__, __file__, "function")
    assert reference_to(Group.inner)[2] == "Group.inner"


@pytest.mark.parametrize("target", [3, functools.partial(function)])
def test_what_is_no_function(target):
    with pytest.raises(TypeError, match="target must be a function or the path of a"):
        reference_to(target)


def test_a_lambda():
    with pytest.raises(ValueError, match="at the top of a module.*<lambda>"):
        reference_to(lambda: None)


@pytest.mark.parametrize("target", [Group().method, hidden, wrapper])
def test_what_its_module_does_not_know_by_its_name(target):
    with pytest.raises(ValueError, match="what its module has under its name"):
        reference_to(target)


def test_a_module_without_a_file(monkeypatch):
    module = types.ModuleType("session")
    exec("def train(): pass", module.__dict__)
    monkeypatch.setitem(__import__("sys").modules, "session", module)

    with pytest.raises(ValueError, match=r"defined in a file.*train of session"):
        reference_to(module.train)
