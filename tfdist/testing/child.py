"""What runs in each process of a cluster that calls a function.

It is started by path as `python -P child.py FOLDER`: where tfdist and the function are
found, it learns from the files in FOLDER.
"""

import contextlib
import faulthandler
import importlib
import importlib.util
import itertools
import os
import pickle
import signal
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

JOB_FILE = "job.pickle"
# What the main file of the parent is called here, where another file is the main one;
# multiprocessing has the same name for it.
MAIN_OF_PARENT = "__mp_main__"


def result_file(folder: Path, rank: int) -> Path:
    """Return the file in which a rank leaves its result.

    Args:
        folder: The folder of the cluster.
        rank: The number of the process.
    """
    return folder / f"rank.{rank}.pickle"


def main(folder: Path) -> int:
    """Call the function and leave its value, or its exception, in a file.

    Args:
        folder: The folder of the cluster.

    Returns:
        The exit code: 0 if the function has returned, 1 if it has raised.
    """
    faulthandler.enable()
    # A rank that is ended while it waits for another leaves the place where it waited.
    faulthandler.register(signal.SIGTERM, chain=True)
    file = result_file(folder, int(os.environ["TFDIST_RANK"]))
    try:
        _leave(file, value=_call(folder))
    except Exception as error:
        text = "".join(traceback.format_exception(_without_own_frames(error)))
        _leave(file, error=(type(error).__name__, str(error), text))
        print(text, end="", file=sys.stderr)
        return 1
    return 0


def load_function(module: str, file: str, name: str) -> Any:
    """Load a function from the file that defines it.

    Args:
        module: The name of its module in the parent.
        file: The file of that module.
        name: Its qualified name.

    Returns:
        The function.
    """
    function: Any = _load_module(module, file)
    for part in name.split("."):
        function = getattr(function, part)
    return function


def _call(folder: Path) -> Any:
    """Load the function and its arguments, and call it."""
    with open(folder / JOB_FILE, "rb") as job:
        path, reference = pickle.load(job)
        sys.path[:] = path
        function = load_function(*reference)
        # Only now, because the arguments may hold classes of the same file.
        arguments = pickle.load(job)
    return function(*arguments)


def _load_module(name: str, file: str) -> ModuleType:
    """Import a module by name if that leads to its file, otherwise from the file."""
    # No such module, one without spec, or one whose origin is no file.
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
    # Under every name by which pickled objects may look for their classes; those in
    # packages look for the packages too.
    sys.modules[name] = sys.modules[spec.name] = module
    for package in itertools.accumulate(name.split(".")[:-1], "{}.{}".format):
        sys.modules.setdefault(package, ModuleType(package))
    spec.loader.exec_module(module)
    return module


def _without_own_frames(error: Exception) -> Exception:
    """Drop the frames of this file from the start of a traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return error.with_traceback(trace)


def _leave(
    file: Path, *, value: Any = None, error: tuple[str, str, str] | None = None
) -> None:
    """Write a result so that the parent sees all of it or nothing."""
    try:
        content = pickle.dumps((value, error), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as problem:
        raise TypeError(
            "target must return what can be pickled. "
            f"Received: {type(value).__name__} ({problem}). "
            "Return numbers, strings, NumPy arrays, or lists and dictionaries of them."
        ) from problem
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_bytes(content)
    unfinished.replace(file)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
