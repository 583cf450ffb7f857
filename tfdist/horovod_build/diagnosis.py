"""Which line of a log says why the build failed, and what to do about it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.horovod_build.packages import how_to_install

# A line that starts a command in the log; what came before it went well.
COMMAND_MARK = "$ "

# What compiler, linker, CMake and make write: the first of these is the cause, and
# what follows it, make's own errors among it, are its consequences.
_ERRORS = re.compile(
    r"""
    :\s(?:fatal\s)?error:\s             # the compiler, with or without a place
    | ^\s*CMake\sError\b
    | :\sundefined\sreference\sto\s
    | \bld:\scannot\sfind\s
    | No\sspace\sleft\son\sdevice
    """,
    re.VERBOSE,
)
# What pip and setuptools write, if nothing of the above is there.
_LAST_RESORTS = (
    re.compile(r"^\s*ERROR: "),
    re.compile(r"^\s*(?:\w+\.)*\w*(?:Error|Exception)\b"),
)
_CMAKE_ERROR = re.compile(r"^\s*CMake\sError\b")

# Where several fit, the first does.
_ADVICE = (
    (
        r"No space left on device",
        "Make room, or set TMPDIR to a folder on another disk: a build takes about "
        "500 MB.",
    ),
    (
        r"Killed signal|signal terminated program|virtual memory exhausted",
        "The memory was not enough. Compile one file at a time: "
        "MAKEFLAGS=-j1 tfdist horovod install",
    ),
    (
        r"\bmpi\.h|find (?:-lmpi|MPI)|MPI_C|MPI is not installed",
        f"Install MPI. {how_to_install('mpi')} "
        "Or build without it: HOROVOD_WITHOUT_MPI=1 tfdist horovod install",
    ),
    (
        r"\bnccl\.h|find -lnccl|NCCL",
        "Install NCCL (https://developer.nvidia.com/nccl), and set "
        "HOROVOD_NCCL_HOME to its folder.",
    ),
    (
        r"\bcuda(?:_runtime)?\.h|find -lcuda|CUDA|nvcc",
        "Install the CUDA toolkit (https://developer.nvidia.com/cuda-downloads), and "
        "set HOROVOD_CUDA_HOME to its folder.",
    ),
    (
        r"\b(?:xla|tsl|tensorflow|highwayhash|farmhash)\S*\.h: No such file",
        "This TensorFlow lacks a header that Horovod needs, or has moved it. "
        "Install a TensorFlow from 2.18 to 2.21.",
    ),
    (
        r"find Tensorflow",
        "TensorFlow cannot be imported here. See why: python -c 'import tensorflow'",
    ),
    (
        r"from versions: none|No matching distribution|NewConnectionError|"
        r"name resolution|Max retries exceeded|Network is unreachable",
        "pip has not reached the index. Check the network or PIP_INDEX_URL; without a "
        "network, put the source of Horovod and what the log names into a folder "
        "and set PIP_FIND_LINKS to it.",
    ),
    (
        r"Permission denied|externally-managed|Read-only file system",
        "Use a virtual environment that you may write to: python -m venv .venv",
    ),
)


@dataclass(frozen=True)
class Failure:
    """What a log says about a failure.

    Args:
        number: The number of the line, from 1.
        text: The line, with what belongs to it.
        advice: What to do.
    """

    number: int
    text: str
    advice: str


def find_failure(lines: Sequence[str]) -> Failure:
    """Find the line of a log that says why its last command failed.

    Args:
        lines: All lines of the log, at least one.

    Returns:
        The line, and what to do.

    Example:
        >>> find_failure(["$ pip", "a.cc:1:2: error: no such name"]).number
        2
    """
    start = max((i for i, line in enumerate(lines) if _is_command(line)), default=0)
    index = _index_of_cause(lines, start)
    text = _whole(lines, index)
    return Failure(index + 1, text, _advice(text))


def _is_command(line: str) -> bool:
    """Tell whether a line starts a command."""
    return line.startswith(COMMAND_MARK)


def _index_of_cause(lines: Sequence[str], start: int) -> int:
    """Find the first error; without any, the last line that says something."""
    for pattern in (_ERRORS, *_LAST_RESORTS):
        for index in range(start, len(lines)):
            if pattern.search(lines[index]) and not _is_command(lines[index]):
                return index
    said = [index for index in range(start, len(lines)) if lines[index].strip()]
    return said[-1] if said else len(lines) - 1


def _whole(lines: Sequence[str], index: int) -> str:
    """Return a line; with the next one after "CMake Error", which only says where."""
    text = lines[index].strip()
    if _CMAKE_ERROR.match(text):
        following = (line.strip() for line in lines[index + 1 :])
        text = f"{text} {next((line for line in following if line), '')}".strip()
    return text


def _advice(text: str) -> str:
    """Say what to do about an error."""
    for pattern, advice in _ADVICE:
        if re.search(pattern, text):
            return advice
    return "Read the log around this line."
