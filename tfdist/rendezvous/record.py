"""Files with flight records; they may be damaged, and of a hostile origin."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist.cluster.validation import excerpt, parse_json
from tfdist.rendezvous.flight import (
    FORMAT,
    RING_BYTES,
    Entry,
    State,
    entries_of,
    state_of,
)

# About the year 6300, which `datetime` still knows.
_LATEST = 2.0**37


@dataclass(frozen=True)
class Record:
    """The content of a file: a rank, its entries and how it has left, if it has."""

    path: Path
    rank: int
    size: int
    host: str
    run: str
    started: float
    entries: Sequence[Entry]
    state: State
    end: str | None

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} of {self.size}")
        times = [self.started, self.state.waits_since]
        times += [at for e in self.entries for at in (e.begin, e.agreed, e.end)]
        if not all(0 <= at < _LATEST for at in times):
            raise ValueError("a time out of range")


def read_record(path: Path) -> Record:
    """Read a file, also one that is being written; ValueError for any other."""
    data = path.read_bytes()
    ring, lines = data[:RING_BYTES], data[RING_BYTES:].split(b"\n")
    try:
        # The process may have been killed while it wrote the last line.
        about, *others = [parse_json(line.decode()) for line in lines[:-1]]
        if about["format"] != FORMAT:
            raise ValueError(repr(about["format"]))
        names = [_printable(line["name"]) for line in others if "name" in line]
        ends = [_printable(line["end"]) for line in others if "end" in line]
        return Record(
            path,
            int(about["rank"]),
            int(about["size"]),
            _printable(about["host"]),
            _printable(about["run"]),
            float(about["started"]),
            entries_of(ring, names),
            state_of(ring),
            ends[-1] if ends else None,
        )
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        reason = _printable(excerpt(f"{type(error).__name__}: {error}"))
        raise ValueError(
            f"{path} is not a whole flight record of this version of tfdist. Received: "
            f"{len(data)} bytes ({reason}). Remove it, or copy it again from the host "
            "of its rank."
        ) from None


def _printable(text: object) -> str:
    """Return a text with escapes in place of what would steer a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))
