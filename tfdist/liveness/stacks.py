"""Python stacks of all ranks, and one sentence on what they do."""

import sys
import sysconfig
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TypeVar

_Value = TypeVar("_Value")

_FRAMES = 60
_LISTED = 4
_INPUT = ("/tensorflow/python/data/", "/data_adapters/")
# The name of a global variable of a module of tfdist that reads input.
_MARK = "READS_INPUT"
# A script may lie in the folder of Python itself, so only these parts of it are not
# the user's.
_KINDS = ("stdlib", "platstdlib", "purelib", "platlib")
_FOLDERS = (Path(__file__).parents[1], *map(sysconfig.get_path, _KINDS))
_LIBRARIES = (*(f"{folder}/" for folder in _FOLDERS), "<frozen")
# Also those of the user's home, and of Debian.
_INSTALLED = ("/site-packages/", "/dist-packages/", "__autograph_generated")


@dataclass(frozen=True)
class Snapshot:
    """The activity of one rank in words, and the stacks of its threads."""

    doing: str = ""  # As in "reads input, `rows()` at line 14 of train.py".
    stacks: tuple[str, ...] = ()
    reads_input: bool = False  # Whether the rank waits for its input.


def take_snapshot() -> Snapshot:
    """Describe the main thread of this process, and those that run the user's code."""
    main = threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = {
        thread: frame
        for thread, frame in sys._current_frames().items()
        if thread == main or not names.get(thread, "").startswith("tfdist")
    }
    readers = {thread for thread, frame in frames.items() if _reads_input(frame)}
    stacks = {
        thread: traceback.extract_stack(frame)[-_FRAMES:]
        for thread, frame in frames.items()
    }
    # A generator of tf.data runs in a thread of its own, for which the main one waits.
    order = sorted(stacks, key=lambda thread: thread == main)
    users = {thread: _user_frame(stacks[thread]) for thread in order}
    shown = [thread for thread in order if users[thread] or thread == main]
    text = tuple("".join(traceback.format_list(stacks[t])) for t in shown[::-1])
    for thread in shown:
        if thread in readers and (frame := users[thread]):
            return Snapshot(f"reads input, {_place(frame)}", text, reads_input=True)
    frame = users[shown[-1]] if shown else None
    return Snapshot(f"runs {_place(frame)}" if frame else "", text)


def _reads_input(frame: FrameType) -> bool:
    """Return whether a stack reads input, by the files of its innermost calls."""
    within = [each for each, _ in traceback.walk_stack(frame)][:_FRAMES]
    names = [each.f_code.co_filename.replace("\\", "/") for each in within]
    return any(part in name for name in names for part in _INPUT) or any(
        _MARK in each.f_globals for each in within
    )


def _user_frame(
    stack: Sequence[traceback.FrameSummary],
) -> traceback.FrameSummary | None:
    """Return the innermost frame that belongs to no library."""
    for frame in reversed(stack):
        name = frame.filename
        is_installed = any(part in name for part in _INSTALLED)
        if not name.startswith(_LIBRARIES) and not is_installed:
            return frame
    return None


def _place(frame: traceback.FrameSummary) -> str:
    """Describe the place of a frame."""
    return f"`{frame.name}()` at line {frame.lineno} of {Path(frame.filename).name}"


def describe(
    snapshots: Mapping[int, Snapshot],
    waiting: Mapping[int, str],
    names: Mapping[int, str],
) -> str:
    """Return one sentence: first what busy ranks do, then in what the others wait."""
    # Without an answer Python does not run there.
    doing = {
        rank: its.doing or ("is in a library" if its.stacks else "does not answer")
        for rank, its in snapshots.items()
        if rank not in waiting or its.reads_input  # The step takes its input itself.
    }
    waits = {
        rank: f"waits in {what}" for rank, what in waiting.items() if rank not in doing
    }
    parts = [*_by_value(doing).items(), *_by_value(waits).items()]
    return "; ".join(f"{_each(who, names)} {what}" for what, who in parts) + "."


def list_stacks(snapshots: Mapping[int, Snapshot], names: Mapping[int, str]) -> str:
    """Return the stacks of all ranks, equal ones once."""
    stacks = {rank: its.stacks for rank, its in snapshots.items() if its.stacks}
    return "".join(
        f"Stack of {_list(who, names)}, the innermost call last:\n{stack}"
        for threads, who in _by_value(stacks).items()
        for stack in threads
    )


def _by_value(values: Mapping[int, _Value]) -> dict[_Value, list[int]]:
    """Return the ranks of each value."""
    ranks: dict[_Value, list[int]] = {}
    for rank, value in sorted(values.items()):
        ranks.setdefault(value, []).append(rank)
    return ranks


def _each(ranks: Sequence[int], names: Mapping[int, str]) -> str:
    """Name ranks as a subject: "rank 1", or "each of rank 0 and rank 2"."""
    return f"each of {_list(ranks, names)}" if len(ranks) > 1 else _list(ranks, names)


def _list(ranks: Sequence[int], names: Mapping[int, str]) -> str:
    """List ranks, the first ones of many."""
    *most, last = [names[rank] for rank in ranks]
    if len(most) >= _LISTED:
        return f"{len(ranks)} ranks ({', '.join(most[:_LISTED])}, ...)"
    return f"{', '.join(most)} and {last}" if most else last
