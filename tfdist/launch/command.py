"""The program that the command line names, found as a path."""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec


def resolve_command(command: Sequence[str], *, module: bool = False) -> tuple[str, ...]:
    """Return the program's path and its arguments; run `.py` files with this Python."""
    if not command:
        raise ValueError(
            "The command is missing. Received: no program to run. "
            "Put it last: tfdist run -np 2 train.py"
        )
    name, *arguments = command
    if module:
        package = name.partition(".")[0]
        # Only the top-level package is looked up, which imports nothing.
        if not package or not (
            find_spec(package) or PathFinder.find_spec(package, [os.getcwd()])
        ):
            raise FileNotFoundError(
                f"The module to run does not exist. Received: -m {name}. Install the "
                f"package {package!r}, or run this in the folder that holds it."
            )
        return (sys.executable, "-m", name, *arguments)
    if name.endswith(".ipynb"):
        script = shlex.quote(name.removesuffix(".ipynb") + ".py")
        raise ValueError(
            f"A notebook cannot be started as a program. Received: {name}. Make a "
            f"script of it, and start {script}: jupyter nbconvert --to script "
            f"{shlex.quote(name)}"
        )
    if name.endswith(".py"):
        if not os.path.isfile(name):
            raise FileNotFoundError(
                f"The script to run does not exist. Received: {name}. "
                f"Give its path from {os.getcwd()}, or the whole path."
            )
        return (sys.executable, name, *arguments)
    program = shutil.which(name)
    if program is None:
        raise FileNotFoundError(
            "The program to run does not exist, or is not executable. "
            f"Received: {name}. Give a .py file, -m and a module, a program on PATH, "
            "or the path of an executable file, as in ./program."
        )
    return (program, *arguments)
