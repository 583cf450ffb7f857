"""All starts of a job, from the folder that `tfdist run --output-dir` fills.

After each start the launcher appends a line of JSON to `job.jsonl`: the number of the
start, from 0, when it began and ended, why it ended, and the last saved step. Ranks
leave their records in the folder itself, after the first restart in `restart1`.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from tfdist.cluster.validation import parse_json
from tfdist.recorder.reader import LATEST, Blackbox, Record, printable, read_folder
from tfdist.recorder.step_times import StepTimes

JOB_FILE = "job.jsonl"


@dataclass(frozen=True)
class End:
    """The end of a start of a job, by the launcher; no reason if it ended well."""

    start: int
    began: float
    ended: float
    reason: str
    saved_step: int | None


@dataclass(frozen=True)
class EpochOfRanks:
    """An epoch: its number, its logs, and the times of a step if all ranks have any."""

    number: int
    logs: Mapping[str, float]
    by_rank: Sequence[StepTimes]


@dataclass(frozen=True)
class Start:
    """A start of the job: its end and its records, each if known."""

    end: End | None
    blackbox: Blackbox | None

    @cached_property
    def epochs(self) -> Sequence[EpochOfRanks]:
        """The epochs, by the record of the lowest rank."""
        records = [] if self.blackbox is None else [*self.blackbox.records.values()]
        found = []
        for position, epoch in enumerate(records[0].epochs if records else []):
            same = [each.epochs[position : position + 1] for each in records]
            times = [one.times for ones in same for one in ones if one.times]
            by_rank = times if len(times) == records[0].size else []
            found.append(EpochOfRanks(epoch.number, epoch.logs, by_rank))
        return found


@dataclass(frozen=True)
class JobRecord:
    """The starts of a job."""

    starts: Sequence[Start]

    @property
    def blackboxes(self) -> list[Blackbox]:
        """The records of all starts that have any."""
        return [start.blackbox for start in self.starts if start.blackbox is not None]

    @property
    def records(self) -> list[tuple[Record, float]]:
        """The records of all ranks; each clock is ahead by so many seconds."""
        return [
            (record, blackbox.ahead_seconds[rank])
            for blackbox in self.blackboxes
            for rank, record in blackbox.records.items()
        ]

    @property
    def epochs(self) -> list[EpochOfRanks]:
        """The epochs of all starts."""
        return [epoch for start in self.starts for epoch in start.epochs]

    @property
    def timed(self) -> list[EpochOfRanks]:
        """The epochs with times of all ranks."""
        return [epoch for epoch in self.epochs if epoch.by_rank]


def note_end(folder: Path, end: End) -> None:
    """Append the end of a start; a full disk must not end the job."""
    with suppress(OSError), (folder / JOB_FILE).open("a") as file:
        file.write(f"{json.dumps(asdict(end))}\n")


def remove_old(folder: Path, log_stem: str) -> None:
    """Remove what an earlier job of the same folder has left for a process."""
    patterns = f"{log_stem}.restart*.log", f"{log_stem}.flight", JOB_FILE
    for pattern in (*patterns, "restart*/rank.*.flight"):
        for old in folder.glob(pattern):
            old.unlink(missing_ok=True)


def read_job(folder: Path) -> JobRecord:
    """Read a folder; FileNotFoundError if it holds no record of a rank."""
    ends = _read_ends(folder / JOB_FILE)
    starts: list[Start] = []
    errors = []
    for number in itertools.count():
        blackbox = None
        try:
            blackbox = read_folder(folder / f"restart{number}" if number else folder)
        except FileNotFoundError as error:
            errors.append(error)
            if number and number not in ends:
                break
        starts.append(Start(ends.get(number), blackbox))
    job = JobRecord(starts)
    if not job.blackboxes:
        raise errors[0]
    return job


def _read_ends(path: Path) -> dict[int, End]:
    """Read what the launcher has written, without lines that it has not."""
    ends = {}
    # Reading a pipe would wait for a writer.
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        with suppress(ArithmeticError, LookupError, TypeError, ValueError):
            values = parse_json(line.decode())
            saved = values["saved_step"]
            end = End(
                int(values["start"]),
                float(values["began"]),
                float(values["ended"]),
                printable(values["reason"]),
                None if saved is None else int(saved),
            )
            if 0 <= end.began < LATEST and 0 <= end.ended < LATEST:
                ends[end.start] = end
    return ends
