"""A function in another process: its reference, and the program that calls it.

Run as `python -P child.py FOLDER`. Nothing else of tfdist is imported.
"""

import contextlib
import faulthandler
import importlib
import importlib.util
import itertools
import linecache
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_JOB_FILE = "job.pickle"
# The name of the parent's main module in this process, as in multiprocessing.
MAIN_OF_PARENT = "__mp_main__"

# Of an exception: the name of its class, its message, its traceback, and itself if it
# can be pickled.
Error = tuple[str, str, str, bytes | None]


def command(folder: Path) -> tuple[str, ...]:
    """Return the command that calls the function of a folder."""
    # -P keeps the folder of this file out of sys.path.
    return (sys.executable, "-P", __file__, str(folder))


def write_job(
    folder: Path,
    call: bytes,
    *,
    reference: tuple[str, str, str] | None = None,
    sources: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Write what a child reads; `call` pickles the function, if not referred to."""
    # `sources` are the lines of code that is in no file, as in a notebook's cells.
    header = pickle.dumps((sys.path, reference, sources or {}))
    folder.joinpath(_JOB_FILE).write_bytes(header + call)


def result_file(folder: Path, rank: int) -> Path:
    """Return the file for the result of a rank."""
    return folder / f"rank.{rank}.pickle"


def main(folder: Path) -> int:
    """Call the function, save its value or exception, and return the exit code."""
    faulthandler.enable()
    file = result_file(folder, int(os.environ["TFDIST_RANK"]))
    try:
        _leave(file, value=_call(folder))
    except Exception as error:
        text = "".join(traceback.format_exception(_without_own_frames(error)))
        pickled = None
        # Not every exception can be pickled.
        with contextlib.suppress(Exception):
            pickled = _dumps(error)
        _leave(file, error=(type(error).__name__, str(error), text, pickled))
        print(text, end="", file=sys.stderr)
        return 1
    return 0


def reference_to(function: Callable[..., Any]) -> tuple[str, str, str]:
    """Return module, file and qualified name, by which `load_function` finds it."""
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
    return module.__name__, file, name


def load_function(module: str, file: str, name: str) -> Any:
    """Load a function by module name, file and qualified name."""
    function: Any = _load_module(module, file)
    for part in name.split("."):
        function = getattr(function, part)
    return function


def _call(folder: Path) -> Any:
    """Load the function and its arguments, and call it."""
    with open(folder / _JOB_FILE, "rb") as job:
        path, reference, sources = pickle.load(job)
        sys.path[:] = path
        for name, lines in sources.items():
            # For tracebacks and AutoGraph.
            linecache.cache[name] = (0, None, lines, name)
        if reference:
            # In a test, SIGTERM makes a waiting rank print its stack before it ends.
            faulthandler.register(signal.SIGTERM, chain=True)
        function = load_function(*reference) if reference else pickle.load(job)
        # Only now, because the arguments may contain classes of the same file.
        arguments = pickle.load(job)
    return function(*arguments)


def _load_module(name: str, file: str) -> ModuleType:
    """Import a module by name if that finds its file, otherwise from the file."""
    # The module may be missing, or have no spec or file.
    with contextlib.suppress(ImportError, ValueError, OSError):
        found = None if name == "__main__" else importlib.util.find_spec(name)
        if found and found.origin and os.path.samefile(found.origin, file):
            return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(
        MAIN_OF_PARENT if name == "__main__" else name, file
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Register every name by which unpickling may look for classes and their packages.
    sys.modules[name] = sys.modules[spec.name] = module
    for package in itertools.accumulate(name.split(".")[:-1], "{}.{}".format):
        sys.modules.setdefault(package, ModuleType(package))
    spec.loader.exec_module(module)
    return module


def _without_own_frames(error: Exception) -> Exception:
    """Remove the frames of this file from the start of a traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return error.with_traceback(trace)


def _dumps(value: object) -> bytes:
    """Pickle a value, with its class if that is in no file."""
    # Not above, where sys.path is not yet that of the parent.
    import cloudpickle

    return cloudpickle.dumps(value)


def _leave(file: Path, *, value: Any = None, error: Error | None = None) -> None:
    """Write a result atomically."""
    try:
        content = _dumps((value, error))
    except Exception as problem:
        raise TypeError(
            "The function must return what can be pickled. "
            f"Received: {type(value).__name__} ({problem}). "
            "Return numbers, strings, NumPy arrays, or lists and dictionaries of them."
        ) from problem
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_bytes(content)
    unfinished.replace(file)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
