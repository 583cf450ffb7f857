"""References by which another process finds a function."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FunctionReference:
    """Module name, file and qualified name of a function."""

    module: str
    file: str
    name: str


def reference_to(function: Callable[..., Any]) -> FunctionReference:
    """Return a reference by which another process can load a function from its file."""
    # Module names do not suffice: pytest gives test files names that cannot be
    # imported.
    name = getattr(function, "__qualname__", None)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if name is None or module is None:
        raise TypeError(
            "target must be a function or the path of a script. "
            f"Received: {function!r}. "
            "Write a function at the top of the file that calls this object."
        )
    if "<" in name:
        raise ValueError(
            "target must be a function at the top of a module, because every process "
            f"loads it from its file. Received: {name}. "
            "Move it out of the function around it, and hand over what it needs in "
            "args."
        )
    file = getattr(module, "__file__", None)
    if file is None:
        raise ValueError(
            "target must be defined in a file, because every process loads it from "
            f"there. Received: {name} of {module.__name__}, which has no file. "
            "Write it into a .py file."
        )
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not function:
        raise ValueError(
            "target must be what its module has under its name, because every process "
            f"looks it up there. Received: {name} of {file}, where that is {found!r}. "
            "Use a plain function without bound arguments."
        )
    return FunctionReference(module.__name__, file, name)
