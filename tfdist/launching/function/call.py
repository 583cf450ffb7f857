"""A call of a function as bytes, and its end in one of several processes."""

import contextlib
import io
import linecache
import marshal
import os
import pickle
import reprlib
import time
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, NoReturn

from tfdist.launching.function.child import Error, result_file
from tfdist.launching.result import RunResult


@dataclass(frozen=True)
class Call:
    """A function with its arguments, pickled, and the code of it that is in no file."""

    pickled: bytes
    # The lines of each piece of code by its name.
    sources: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, function: Callable[..., Any], arguments: Sequence[Any]) -> "Call":
        """Pickle a call, or say why that is impossible."""
        if not callable(function):
            raise TypeError(
                "function must be what the processes call. "
                f"Received: {function!r}. Give a function, and its arguments after it."
            )
        pickled = b""
        for name, value in (("function", function), ("arguments", tuple(arguments))):
            try:
                pickled += _dumps(value)
            except Exception as error:
                raise TypeError(
                    "The function, what it uses, and its arguments must be picklable, "
                    f"as they go to other processes. Received: {name} "
                    f"{reprlib.repr(value)} ({type(error).__name__}: {error}). "
                    "Make datasets, models and open files in the function."
                ) from error
        code = getattr(function, "__code__", None)
        return cls(pickled, _sources(code.co_filename if code else ""))


@dataclass(frozen=True)
class RankEnd:
    """The end of a rank: its value, its exception, or another failure."""

    rank: int
    size: int
    # What the child has left: its value and its error, pickled.
    content: bytes | None = None
    # The failure in other words than its error; empty on success.
    problem: str = ""
    # When it failed, since the epoch.
    seconds: float = 0.0

    @classmethod
    def of(cls, result: RunResult, folder: Path, size: int) -> "RankEnd":
        """Return the end that counts of the processes that have run here."""
        exit_ = result.exits[0]
        if result.failed_rank is not None:
            exit_ = result.exit_of(result.failed_rank)
        file, problem = result_file(folder, exit_.rank), result.headline()
        if file.exists():
            seconds = file.stat().st_mtime
            return cls(exit_.rank, size, file.read_bytes(), problem, seconds)
        problem = problem or f"{exit_.name} ended without a value."
        lines = [f"The last lines of {exit_.name}:", *exit_.tail] if exit_.tail else ()
        problem = "\n".join([problem, *lines])
        return cls(exit_.rank, size, None, problem, time.time())

    @staticmethod
    def first(ends: Sequence["RankEnd"]) -> "RankEnd":
        """Return the end that counts: of the rank that failed first, or of rank 0."""
        # Ranks may fail because another has.
        failed = [end for end in ends if end.problem]
        if failed:
            return min(failed, key=lambda end: end.seconds)
        return next(end for end in ends if end.rank == 0)

    def value(self) -> Any:
        """Return the value of the rank, or raise what has ended it."""
        value, error = (None, None) if self.content is None else _read(self.content)
        if error is not None:
            self._raise(*error)
        if self.problem:
            raise RuntimeError(self.problem)
        return value

    def _raise(
        self, name: str, message: str, text: str, pickled: bytes | None
    ) -> NoReturn:
        """Raise the exception of the rank, from its traceback."""
        where = f"rank {self.rank} of {self.size}"
        raised = RuntimeError(f"{where} raised {name}: {message}")
        # Its class may be unknown here, or its constructor take other arguments.
        with contextlib.suppress(Exception):
            raised = pickle.loads(pickled or b"")
        raise raised from RemoteTraceback(f"of {where}\n\n{text}")


class RemoteTraceback(Exception):
    """The traceback of a rank, as the cause of the exception that it has raised."""


def _dumps(value: object) -> bytes:
    """Pickle a value, with code of this program and the names of its files."""
    # Late, because `import tfdist.launching` must be quick.
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        # cloudpickle itself leaves out the files, so that tracebacks would have no
        # lines, and AutoGraph could convert nothing.
        dispatch_table = ChainMap(
            {CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table
        )

    with io.BytesIO() as file:
        Pickler(file).dump(value)
        return file.getvalue()


def _reduce_code(code: CodeType) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
    """Pickle code as Python writes it into .pyc files."""
    return marshal.loads, (marshal.dumps(code),)


def _read(content: bytes) -> tuple[Any, Error | None]:
    """Read what the child has left."""
    try:
        return pickle.loads(content)
    except Exception as error:
        raise RuntimeError(
            "The value of the function must be one that can be unpickled here. "
            f"Received: {type(error).__name__}: {error}. Return numbers, strings, "
            "NumPy arrays, or lists and dictionaries of them."
        ) from error


def _sources(file: str) -> dict[str, list[str]]:
    """Return the lines of a function's file, and of code that has none."""
    # Python keeps the lines of a notebook's cells, for tracebacks.
    names = {name for name in linecache.cache if not os.path.exists(name)}
    return {name: linecache.getlines(name) for name in sorted({file, *names} - {""})}
