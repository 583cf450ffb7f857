"""The program that the command line names, found as a path."""

import importlib.machinery
import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence


def resolve_command(command: Sequence[str], *, module: bool = False) -> tuple[str, ...]:
    """Return the program's path and its arguments; run `.py` files with this Python."""
    if not command:
        raise ValueError(
            "The command is missing. Received: no program to run. "
            "Put it last: tfdist run -np 2 train.py"
        )
    name, *arguments = command
    if module:
        _check_module(name)
        return (sys.executable, "-m", name, *arguments)
    if name.endswith(".py"):
        if not os.path.isfile(name):
            raise FileNotFoundError(
                f"The script to run does not exist. Received: {name}. "
                f"Give its path from {os.getcwd()}, or the whole path."
            )
        return (sys.executable, name, *arguments)
    return (_find_program(name), *arguments)


def _check_module(name: str) -> None:
    """Refuse a missing module; check only its top-level package, to import nothing."""
    package = name.partition(".")[0]
    found = package and (
        importlib.util.find_spec(package) is not None
        or importlib.machinery.PathFinder.find_spec(package, [os.getcwd()]) is not None
    )
    if not found:
        raise FileNotFoundError(
            f"The module to run does not exist. Received: -m {name}. "
            f"Install the package {package!r}, or run this in the folder that holds it."
        )


def _find_program(name: str) -> str:
    """Return the path of a program, searching PATH like a shell."""
    program = shutil.which(name)
    if program is not None:
        return program
    if os.path.dirname(name) and os.path.isfile(name):
        raise PermissionError(
            f"The program to run is not executable. Received: {name}. "
            f"Make it so with: chmod +x {name}"
        )
    raise FileNotFoundError(
        f"The program to run does not exist. Received: {name}. "
        "Give a .py file, -m and a module, a program on PATH, or its path, as in "
        "./program."
    )
