"""A job that has run, as text and as a page: `tfdist report DIR --html`."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from html import escape

from tfdist.recorder.job import JobRecord
from tfdist.recorder.reader import clock
from tfdist.recorder.step_times import verdict
from tfdist_cli.plots import draw_logs, draw_shares, draw_time_line, draw_times, svg_of

_NO_LOSS = (
    "No epoch with a finite loss has ended. Epochs are recorded when ranks train with "
    "model.fit under a strategy of tfdist."
)
_NO_RATE = (
    "The examples per second are not recorded. Add the callback that measures them: "
    "model.fit(..., callbacks=[tfdist.callbacks.Throughput()])"
)
_NO_TIMES = (
    "No epoch has the times of all ranks. An epoch of four steps or less has none, nor "
    "have deterministic graphs. If ranks ran on other hosts, copy their files here."
)
_RATE = "examples_per_second"
_PICTURES = (
    ("Loss", partial(draw_logs, names=("loss", "val_loss")), _NO_LOSS),
    ("Examples per second", partial(draw_logs, names=(_RATE,), bottom=0), _NO_RATE),
    ("Time of a step", draw_times, _NO_TIMES),
    ("Shares of a step", draw_shares, _NO_TIMES),
    ("Restarts and faults", draw_time_line, ""),
)
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }}
body {{ margin: 0 auto; max-width: 76rem; padding: 1rem; overflow-wrap: anywhere; }}
h1 {{ font-size: 1.5rem; }}
h2 {{ font-size: 1.1rem; }}
main {{ display: grid; gap: 0 2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }}
section {{ min-width: 0; }}
section:first-child {{ grid-column: 1 / -1; }}
p {{ max-width: 60rem; white-space: pre-line; }}
svg {{ background: white; height: auto; max-width: 100%; width: 40rem; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{summary}</p>
<main>
{sections}
</main>
</body>
</html>
"""


def text_of_job(job: JobRecord) -> str:
    """Return a job as text."""
    return "\n\n".join([_summary(job), _verdict(job), "\n".join(_events(job))])


def page_of(job: JobRecord, name: str) -> str:
    """Return the page of a job with a name, as HTML without scripts and links."""
    sections = [("What limits the steps", _paragraph(_verdict(job)))]
    for title, draw, lack in _PICTURES:
        sections.append((title, svg_of(draw, job) or _paragraph(lack)))
    sections.append(("What happened", _list(_events(job))))
    if notes := [note for blackbox in job.blackboxes for note in blackbox.notes]:
        sections.append(("Remarks", _list(notes)))
    return _PAGE.format(
        title=escape(f"The job of {name}"),
        summary=escape(_summary(job)),
        sections="\n".join(
            f"<section><h2>{title}</h2>\n{body}</section>" for title, body in sections
        ),
    )


def _summary(job: JobRecord) -> str:
    """Return the size of a job."""
    records = [record for record, _ in job.records]
    hosts = sorted({record.host for record in records})
    began = datetime.fromtimestamp(min(each.started for each in records), UTC)
    return (
        f"Ranks: {max(record.size for record in records):,}. Hosts: "
        f"{', '.join(hosts[:3])}{', ...' * (len(hosts) > 3)}. Restarts: "
        f"{len(job.starts) - 1:,}. Epochs: {len(job.epochs):,}. The ranks met on "
        f"{began:%Y-%m-%d at %H:%M:%S} UTC."
    )


def _verdict(job: JobRecord) -> str:
    """Return what limits the steps, or why that is not known."""
    found = None
    for epoch in job.timed:
        found = verdict(epoch.by_rank, found)
    return _NO_TIMES if found is None else f"Epoch {job.timed[-1].number}: {found}"


def _events(job: JobRecord) -> Iterator[str]:
    """Yield what happened at each start and end of the job."""
    for number, start in enumerate(job.starts):
        name = f"restart {number}" if number else "the first start"
        end, epochs = start.end, [epoch.number for epoch in start.epochs]
        trained = (
            f"epochs {epochs[0]} to {epochs[-1]} ended" if epochs else "no epoch ended"
        )
        if end is None:
            yield f"{name}: {trained}; its end is not recorded, or it runs still."
            continue
        how = end.reason.rstrip(".") or "all ended well"
        yield f"{clock(end.began)}: {name}; {trained}."
        saved = f". The last saved step was {end.saved_step}" if end.saved_step else ""
        yield f"{clock(end.ended)}: {how}{saved}."
        if end.reason and start.blackbox is not None:
            yield f"Where it stopped: {start.blackbox.sentence}"


def _paragraph(text: str) -> str:
    """Return a paragraph."""
    return f"<p>{escape(text)}</p>"


def _list(lines: Iterable[str]) -> str:
    """Return a list."""
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"
