"""`tfdist blackbox`: where a job stopped, from the flight records of its ranks."""

import argparse
import dataclasses
import json
from pathlib import Path
from textwrap import fill

from tfdist.recorder.reader import Blackbox, Record, clock, read_folder
from tfdist.recorder.trace import trace_of
from tfdist_cli.options import (
    JSON,
    Commands,
    add_command,
    add_options,
    check_outputs,
    print_figures,
)
from tfdist_cli.table import format_table

_SUMMARY = "say where a job stopped, from the records of its ranks"
_DESCRIPTION = """\
Say where a job stopped: which collective the ranks have not begun or ended together.

With `tfdist run --output-dir DIR` each rank records its last 4,096 collectives in
DIR/rank.N.flight, which survives a kill -9. This command compares the records, also
while the job runs.
"""

_EPILOG = """\
examples:
  tfdist run -np 2 --output-dir logs train.py
  tfdist blackbox logs
  tfdist blackbox logs --trace job.json     for https://ui.perfetto.dev

What the output means: docs/troubleshooting.md
"""
_OPTIONS = {
    "--trace FILE": "write the records of all ranks on one clock in Chrome's trace "
    "format, which Perfetto shows: who waits for whom"
}
_LAST = 4
_LINE_WIDTH = 80
_CLOCKS = (
    "Times are by the clock of rank {}; the clocks of other hosts are aligned by the "
    "ends of collectives, which all ranks leave at about the same time."
)


def add_parser(commands: Commands) -> None:
    """Add the parser of `tfdist blackbox`."""
    parser = add_command(commands, "blackbox", run, _SUMMARY, _DESCRIPTION, _EPILOG)
    text = "the folder of the records, as given to `tfdist run --output-dir`"
    parser.add_argument("folder", type=Path, metavar="DIR", help=text)
    add_options(parser, _OPTIONS | JSON)


def run(args: argparse.Namespace) -> int:
    """Run `tfdist blackbox`, and return the exit code."""
    check_outputs(args, "json", "trace")
    blackbox = read_folder(args.folder)
    if args.trace is not None:
        args.trace.write_text(json.dumps(trace_of(blackbox)))
    print_figures(args.json, _figures(blackbox), text_of(blackbox))
    return 0


def text_of(blackbox: Blackbox) -> str:
    """Return a comparison as text."""
    lines = [blackbox.sentence, *blackbox.notes]
    if blackbox.late is not None:
        late = blackbox.late
        lines.append(
            f"Rank {late.rank} most often began last: {late.times:,} of {late.of:,} "
            f"collectives, {1000 * late.seconds:.1f} ms after the others on average."
        )
    if len(blackbox.records) > 1:
        lines.append(_CLOCKS.format(min(blackbox.records)))
    paragraphs = [fill(line, _LINE_WIDTH, break_on_hyphens=False) for line in lines]
    rows = [
        row
        for rank, record in blackbox.records.items()
        for row in _rows(record, blackbox.ahead_seconds[rank])
    ]
    header = ["rank", "collective", "bytes", "began", "took ms"]
    return "\n".join([*paragraphs, "", format_table(header, rows)])


def _rows(record: Record, ahead_seconds: float) -> list[list[str]]:
    """Return the rows of the last collectives of a rank."""
    return [
        [
            str(record.rank),
            entry.title,
            f"{entry.size_bytes:,}" if entry.size_bytes else "",
            clock(entry.begin - ahead_seconds).removesuffix(" UTC"),
            "not ended" if entry.is_open else f"{1000 * entry.seconds:,.1f}",
        ]
        for entry in record.entries[-_LAST:]
    ]


def _figures(blackbox: Blackbox) -> dict[str, object]:
    """Return a comparison for JSON."""
    figures = dataclasses.asdict(dataclasses.replace(blackbox, records={}))
    figures["records"] = {
        rank: [entry._asdict() for entry in record.entries[-_LAST:]]
        for rank, record in blackbox.records.items()
    }
    return figures
