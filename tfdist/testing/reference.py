"""How to find a function again in another process."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FunctionReference:
    """Where a function is defined.

    Args:
        module: The name of its module.
        file: The file of that module.
        name: Its qualified name there.
    """

    module: str
    file: str
    name: str


def reference_to(function: Callable[..., Any]) -> FunctionReference:
    """Describe a function so that another process can load it from its file.

    The name of the module is not enough: pytest, for one, loads test files under names
    that cannot be imported.

    Args:
        function: A function at the top of a module, or a static one of a class there.

    Returns:
        Where it is.

    Raises:
        TypeError: If it is no function.
        ValueError: If another process could not find it.

    Example:
        >>> reference_to(reference_to).name
        'reference_to'
    """
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
