"""From what stands on the command line to the program that is started."""

import difflib
import importlib.machinery
import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence


def resolve_command(command: Sequence[str], *, module: bool = False) -> tuple[str, ...]:
    """Find the program of a command, so that a slip is an error before anything starts.

    Args:
        command: The program and its arguments. A file that ends in `.py` runs with this
            interpreter; anything else is looked up as a shell would.
        module: Whether the first word is a Python module, as after `python -m`.
            Default False.

    Returns:
        The program, as a path, and its arguments.

    Raises:
        FileNotFoundError: If there is no such file, module or program.
        PermissionError: If the file is no program.
        ValueError: If the command is empty.

    Example:
        >>> resolve_command(["sh", "-c", "exit 3"])[1:]
        ('-c', 'exit 3')
    """
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
        _check_file(name)
        return (sys.executable, name, *arguments)
    return (_find_program(name), *arguments)


def _check_module(name: str) -> None:
    """Look for the outermost package only: finding more would have to import it."""
    package = name.partition(".")[0]
    found = package and (
        importlib.util.find_spec(package) is not None
        or importlib.machinery.PathFinder.find_spec(package, [os.getcwd()]) is not None
    )
    if not found:
        raise FileNotFoundError(
            f"The module to run does not exist. Received: -m {name}. "
            f"No package {package!r} is installed or in {os.getcwd()}."
        )


def _check_file(name: str) -> None:
    """Refuse a script that is not there, and offer the one that may be meant."""
    if not os.path.isfile(name):
        raise FileNotFoundError(
            f"The script to run does not exist. Received: {name}. "
            f"{_nearest_script(name)}"
        )


def _nearest_script(name: str) -> str:
    """Offer a script of nearly the same name, or say where we have looked."""
    folder, file = os.path.split(os.path.abspath(name))
    if not os.path.isdir(folder):
        return f"There is no folder {folder}."
    scripts = [entry for entry in os.listdir(folder) if entry.endswith(".py")]
    nearest = difflib.get_close_matches(file, scripts, n=1)
    if not nearest:
        return f"There is no such file in {folder}."
    return f"Did you mean {os.path.join(os.path.dirname(name), nearest[0])}?"


def _find_program(name: str) -> str:
    """Return the path of a program, looked up as a shell does."""
    program = shutil.which(name)
    if program is not None:
        return program
    if os.path.dirname(name) and os.path.isfile(name):
        raise PermissionError(
            f"The program to run is not executable. Received: {name}. "
            f"Make it so with: chmod +x {name}"
        )
    hint = f" Did you mean ./{name}?" if os.path.isfile(name) else ""
    raise FileNotFoundError(
        f"The program to run does not exist. Received: {name}. "
        f"Give a .py file, -m and a module, or a program on PATH.{hint}"
    )
