"""`tfdist report`: a job that has run, or how jobs of several sizes scale."""

import argparse
import dataclasses
from pathlib import Path
from textwrap import fill

from tfdist.recorder.job import read_job
from tfdist.scaling.report import Law, ScalingReport, scaling_report
from tfdist.scaling.throughput import read_run
from tfdist_cli.options import (
    JSON,
    Commands,
    add_command,
    add_options,
    check_outputs,
    print_figures,
)
from tfdist_cli.table import format_table

_SUMMARY = "say how a job went, or how several of them scale"
_DESCRIPTION = """\
Say how one job went, from the folder of `tfdist run --output-dir`; or how training
scales, from the files of runs on 1, 2, 4, ... processes.

Of a folder it says what limited the steps, and what happened at each start; --html also
draws loss, rate, step times, shares and restarts.

Each file is one that the callback Throughput(json="4.json") has written. The rate of a
run is the median of its epochs, and of several runs on the same number of processes the
median counts. Amdahl's and Gustafson's law are fitted, and say what their serial
fraction allows on more processes.
"""

_EPILOG = """\
examples:
  tfdist report logs --html job.html          one page; needs matplotlib
  tfdist report 1.json 2.json 4.json
  tfdist report *.json --plot scaling.png     a curve, too; needs matplotlib

What the figures mean: docs/scaling.md; the page: docs/troubleshooting.md
"""

_KINDS = {
    "strong": "Strong scaling: the global batch is always {batch:,}, and the processes "
    "share it. Amdahl's law is the one to read.",
    "weak": "Weak scaling: the batch of each process is always {share:,g}, and the "
    "global one grows. Gustafson's law is the one to read.",
    "mixed": "Neither weak nor strong scaling: the global batch and that of each "
    "process both change, so that the speed-up is of the batch, too. Hold one of them "
    "still.",
    "unknown": "Strong or weak scaling? Not every file says its global batch. Amdahl's "
    "law is for the same global batch on all, Gustafson's for the same batch per "
    "process.",
}
_ONE_SIZE = (
    "All runs have the same number of processes. Give runs with another one, too, for "
    "a speed-up and the laws."
)
_ENLARGE = (
    "Enlarge the batch, so that each process computes for longer between two exchanges "
    "with the others. The callback Verdict says where the time of a step goes."
)
_LINE_WIDTH = 80


_OPTIONS = {
    "--plot FILE": "draw the speed-up of several runs; the name's ending says how "
    "(.png, .svg, .pdf)",
    "--html FILE": "write the page of one job, which opens without a server",
}


def add_parser(commands: Commands) -> None:
    """Add the parser of `tfdist report`."""
    parser = add_command(commands, "report", run, _SUMMARY, _DESCRIPTION, _EPILOG)
    text = "what Throughput(json=FILE) has written, one for each run; or one folder"
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE|DIR", help=text)
    add_options(parser, _OPTIONS | JSON)


def run(args: argparse.Namespace) -> int:
    """Run `tfdist report`, and return the exit code."""
    check_outputs(args, "json", "plot", "html")
    if args.html is not None or args.files[0].is_dir():
        return _report_job(args)
    report = scaling_report({str(file): read_run(file) for file in args.files})
    if args.plot is not None:
        # Imports matplotlib, which is optional and slow.
        from tfdist_cli.plots import draw_scaling, new_figure

        draw_scaling(new_figure(args.plot, 7, 5), report, args.plot)
    print_figures(args.json, dataclasses.asdict(report), text_of(report))
    return 0


def _report_job(args: argparse.Namespace) -> int:
    """Report on one job, and return the exit code."""
    folder, *others = args.files
    if others or args.plot is not None or args.json is not None:
        raise ValueError(
            "A report on a job takes its folder and --html; --plot and --json are for "
            f"files. Received: {' '.join(map(str, args.files))}, and other options. "
            "Report on the folder alone."
        )
    job = read_job(folder)
    # Reports on files need neither the page nor its pictures.
    from tfdist_cli.job_page import page_of, text_of_job

    if args.html is not None:
        args.html.write_text(page_of(job, folder.resolve().name), encoding="utf-8")
    for line in text_of_job(job).splitlines():
        print(line if line.startswith(" ") else fill(line, _LINE_WIDTH))
    return 0


def text_of(report: ScalingReport) -> str:
    """Return a report as text."""
    parts = [_measured(report), _words(report)]
    if report.amdahl is not None and report.gustafson is not None:
        parts.append(_laws(report.amdahl, report.gustafson, report.base))
    return "\n\n".join(parts)


def _measured(report: ScalingReport) -> str:
    """Return the table of measurements."""
    units = report.units_per_example
    rows = [
        [
            str(row.processes),
            "?" if row.global_batch_size is None else f"{row.global_batch_size:,}",
            f"{row.examples_per_second:,.1f}",
            *(f"{row.examples_per_second * count:,.1f}" for count in units.values()),
            f"{row.speedup:.2f}",
            f"{row.efficiency:.2f}",
        ]
        for row in report.rows
    ]
    rates = [f"{unit} per second" for unit in ("examples", *units)]
    header = ["processes", "global batch", *rates, "speed-up", "efficiency"]
    return format_table(header, rows)


def _words(report: ScalingReport) -> str:
    """Return sentences on what the table compares."""
    base = report.base
    sentences = [] if report.model is None else [f"Model: {report.model}."]
    if len(report.rows) == 1:
        sentences.append(_ONE_SIZE)
    else:
        batch = report.rows[0].global_batch_size or 0
        kind = _KINDS[report.scaling]
        sentences.append(kind.format(batch=batch, share=batch / base))
        if base > 1:
            sentences.append(
                f"No run has one process: speed-up and efficiency are against {base} "
                "processes, and the serial fractions are of the time that these take."
            )
    sentences += _beyond_the_laws(report)
    if report.gains_little:
        sentences.append(_ENLARGE)
    sentences += [
        f"The rate on {row.processes} is the median of {row.runs} runs."
        for row in report.rows
        if row.runs > 1
    ]
    sentences += [
        f"The runs were made by different versions of {name}: {', '.join(versions)}."
        for name, versions in report.versions.items()
    ]
    return "\n".join(fill(sentence, _LINE_WIDTH) for sentence in sentences)


def _beyond_the_laws(report: ScalingReport) -> list[str]:
    """Return a sentence if no serial fraction from 0 to 1 fits the measurements."""
    fraction = None if report.amdahl is None else report.amdahl.serial_fraction
    if fraction == 1.0 and any(row.speedup < 1.0 for row in report.rows):
        return [
            "More processes are slower here than fewer: they wait for each other for "
            "longer than they save. No serial fraction says that; the laws stand at 1."
        ]
    if fraction == 0.0 and any(row.efficiency > 1.0 for row in report.rows):
        return [
            "This is better than perfect, as with noise, or caches that hold more "
            "together. No serial fraction says that; the laws stand at 0."
        ]
    return []


def _laws(amdahl: Law, gustafson: Law, base: int) -> str:
    """Return the table of predictions by the laws."""
    rows = [
        [
            f"{name}: {grows}",
            f"{law.serial_fraction:.4f}",
            *(f"{speedup:,.2f}" for speedup in law.speedups.values()),
            "none" if law.limit is None else f"{law.limit:,.2f}",
        ]
        for name, grows, law in (
            ("Amdahl", "the work stays the same", amdahl),
            ("Gustafson", "the work grows", gustafson),
        )
    ]
    against = "" if base == 1 else f" against {base}"
    sizes = [f"on {size:,}" for size in amdahl.speedups]
    header = [f"speed-up{against} by the law of", "serial fraction", *sizes, "limit"]
    return format_table(header, rows)
