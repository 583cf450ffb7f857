"""`tfdist report DIR`: the page of a job and its text, from records written by hand."""

import json
import math
import os
from html.parser import HTMLParser

import pytest

from tfdist.cluster.launcher import Launcher
from tfdist.recorder.job import End, note_end, read_job
from tfdist.recorder.ring import RING_BYTES, ROW, Flight, create_file
from tfdist_cli.plots import draw_logs, draw_shares, draw_time_line, draw_times

HOSTILE = '</p></svg><script src="https://a/b.js">alert(1)</script><img src=x>$\\frac{'
FAULT = "rank 1 was killed by SIGKILL after 2.0 s."
# Seconds of a step, of its input and of its collectives, by rank.
TIMES = [0.010, 0.001, 0.007], [0.010, 0.002, 0.001]
RATE = {"examples_per_second": 500.0}


def epoch_line(number, times=None, **logs):
    """Return the line of an epoch."""
    began = 1e9 + 10 * number
    line = {"epoch": number, "began": began, "ended": began + 9}
    return {**line, "times": times, "logs": logs}


@pytest.fixture
def write(folder):
    """Return what writes the records of a start, and gives the name of the folder."""

    def write(epochs=(), start=0, size=2, end="", lines=()):
        place = folder / "logs" / (f"restart{start}" if start else "")
        for rank in range(size):
            env = {"TFDIST_FLIGHT_DIR": str(place), "TFDIST_RUN_ID": str(start)}
            file = create_file(rank, size, Launcher(env))
            memory = memoryview(bytearray(RING_BYTES))
            flight = Flight(memory, file)
            row = 1, flight.number_of("a"), 8, 0, 1, 1e9, 0.0, 1e9 + 1
            ROW.pack_into(memory, 0, *map(float, row))
            of_rank = [
                epoch_line(number, times and times[rank], **logs)
                for number, times, logs in epochs
            ]
            for line in [*of_rank, *lines]:
                os.write(file, f"{json.dumps(line)}\n".encode())
            if end is not None:
                flight.close(end)
            os.pwrite(file, memory, 0)
            os.close(file)
        return "logs"

    return write


@pytest.fixture
def job(write, folder):
    """Write a job that was started again after two epochs, of which one was saved."""
    write([(1, TIMES, {"loss": 4.0, **RATE}), (2, TIMES, {"loss": 3.0, **RATE})])
    write([(2, TIMES, {"loss": 2.5, **RATE}), (3, TIMES, {"loss": 2.0, **RATE})], 1)
    note_end(folder / "logs", End(0, 1e9, 1e9 + 30, FAULT, 20))
    note_end(folder / "logs", End(1, 1e9 + 31, 1e9 + 60, "", 60))
    return "logs"


class Page(HTMLParser):
    """The tags of a page, what they load or run, and the text of each section."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.sections, self.loaded, self.texts = set(), {}, [], []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self._inside = tag
        for name, value in attributes:
            is_loaded = name in ("src", "href", "xlink:href", "action", "data")
            if (is_loaded and not value.startswith("#")) or name.startswith("on"):
                self.loaded.append((tag, name, value))
        if tag == "section":
            self.texts = []
        if tag == "svg":
            self.texts.append("<svg>")

    def handle_data(self, data):
        if self._inside == "h2":
            self.sections[data] = self.texts
            self._inside = ""
        elif data.strip():
            self.texts.append(data.strip())


@pytest.fixture
def page(printed, folder):
    """Return what writes the page of a folder, and reads it."""

    def page(name="logs"):
        printed("report", name, "--html", "job.html")
        return Page((folder / "job.html").read_text(encoding="utf-8"))

    return page


@pytest.fixture
def drawn(folder):
    """Return what draws a picture of the job, and returns the axes."""
    from matplotlib.figure import Figure

    def drawn(draw, *names):
        axes = Figure().add_subplot()
        assert draw(axes, read_job(folder / "logs"), *names)
        return axes

    return drawn


def test_a_page_has_a_picture_of_each_kind_and_loads_nothing(job, page):
    found = page()

    assert found.loaded == []
    assert found.tags.isdisjoint({"script", "link", "img", "iframe", "object"})
    pictures = [name for name, text in found.sections.items() if "<svg>" in text]
    assert pictures == [
        "Loss",
        "Examples per second",
        "Time of a step",
        "Shares of a step",
        "Restarts and faults",
    ]
    assert "rank 1: input and compute" in found.sections["Time of a step"]
    [said] = found.sections["What limits the steps"]
    assert said.startswith("Epoch 3: rank 1 takes 3.0 times as long as the others")
    assert "rank 0, a typical one: input 10%, compute 20%, communication 10%" in said


def test_the_text_and_what_happened_on_the_page(job, page, printed):
    happened = page().sections["What happened"]

    assert [line.partition(" UTC: ")[2] or line for line in happened] == [
        "the first start; epochs 1 to 2 ended.",
        "rank 1 was killed by SIGKILL after 2.0 s. The last saved step was 20.",
        "Where it stopped: All ranks made the same 1 collectives. Rank 0 ended by "
        "itself. Rank 1 ended by itself.",
        "restart 1; epochs 2 to 3 ended.",
        "all ended well. The last saved step was 60.",
    ]
    text = " ".join(printed("report", job).split())
    assert text.startswith("Ranks: 2. Hosts: ")
    assert ". Restarts: 1. Epochs: 4. The ranks met on 20" in text
    assert all(line in text for line in happened)


def test_lines_by_epoch_of_each_start(job, drawn):
    lines = drawn(draw_logs, ["loss", "val_loss"]).get_lines()

    by_label = [(line.get_label(), line.get_xydata().tolist()) for line in lines]
    assert by_label == [
        ("loss", [[1, 4], [2, 3]]),
        ("loss", [[2, 2.5], [3, 2]]),
        ("restart", [[2, 0], [2, 1]]),
    ]
    assert drawn(draw_logs, [*RATE]).get_lines()[0].get_ydata().tolist() == [500, 500]


def test_times_and_shares_of_ranks(job, drawn):
    first, own_0, own_1 = [
        line for line in drawn(draw_times).get_lines() if line.get_label() != "restart"
    ][::2]
    assert first.get_ydata() == pytest.approx([10, 10])
    assert own_0.get_ydata() == pytest.approx([3, 3])
    assert own_1.get_ydata() == pytest.approx([9, 9])

    bars = drawn(draw_shares).containers
    assert {row.get_label(): [bar.get_width() for bar in row] for row in bars} == {
        "input": pytest.approx([10, 20]),
        "compute": pytest.approx([20, 70]),
        "communication": pytest.approx([10, 10]),
        "waiting": pytest.approx([60, 0]),
    }


def test_the_time_line_has_starts_epochs_and_the_fault(write, folder, drawn):
    write([(1, None, {}), (2, None, {})], end=None)
    write([(3, None, {})], 1, end="ValueError: a")
    note_end(folder / "logs", End(0, 1e9, 1e9 + 30, FAULT, 20))

    axes = drawn(draw_time_line)

    labels = [bars.get_label() for bars in axes.containers]
    assert labels == ["killed, or running"] * 2 + ["ended with an error"] * 2
    by_label = {line.get_label(): line for line in axes.get_lines()}
    assert len(by_label["end of an epoch"].get_xdata()) == 1
    assert "end by a fault" in by_label


def test_hostile_texts_are_text(write, folder, page):
    """In logs, errors, the launcher's lines, and the name of the folder."""
    lines = [epoch_line(1, None, **{HOSTILE: 1.0, "loss": 2.0}), {"end": HOSTILE}]
    write(lines=lines, end=None)
    note_end(folder / "logs", End(0, 1e9, 1e9 + 30, HOSTILE, 0))
    (folder / "logs" / "rank.7.flight").write_text(HOSTILE)
    named = folder / "<script>alert(1)<"
    (folder / "logs").rename(named)

    found = page(named.name)

    assert found.loaded == []
    assert found.tags.isdisjoint({"script", "img"})
    happened = " ".join(found.sections["What happened"])
    assert happened.count(HOSTILE) == 3
    assert "is not a whole flight record" in found.sections["Remarks"][0]


def slow(*arguments):
    return pytest.param(*arguments, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("epochs", "section", "said"),
    [
        ([], "Loss", "No epoch with a finite loss has ended."),
        slow([], "What limits the steps", "No epoch has the times of all ranks."),
        ([(1, TIMES, {"loss": 1.0})], "Examples per second", "tfdist.callbacks.Throug"),
        slow([(1, None, {"loss": 1.0})], "Time of a step", "No epoch has the times"),
        slow([(1, None, {"loss": 1.0})], "Shares of a step", "No epoch has the times"),
        slow(
            [(1, [[0.0, 0, 0]] * 2, {})], "Shares of a step", "No epoch has the times"
        ),
        ([(1, [[1, 2, 0.5]] * 2, {})], "Shares of a step", "No epoch has the times"),
        slow([(1, [[1, 0, math.nan]] * 2, {})], "Time of a step", "No epoch has the"),
        slow([(1, TIMES, {"loss": math.nan})], "Loss", "No epoch with a finite loss"),
        slow([(1, TIMES, {"loss": 1e300})], "Loss", "No epoch with a finite loss"),
        slow([(1, TIMES, {"mse": 1.0})], "Loss", "No epoch with a finite loss"),
    ],
)
def test_what_is_missing_is_said_in_place_of_a_picture(
    epochs, section, said, write, page
):
    write(epochs)

    [text] = page().sections[section]
    assert said in text


def test_of_many_ranks_the_slowest_are_drawn(write, drawn):
    times = [[0.010, 0.001, 0.009 - 0.0005 * rank] for rank in range(12)]
    write([(1, times, {})], size=12)

    names = [line.get_label() for line in drawn(draw_times).get_lines()]
    assert names == [
        "whole step",
        *(f"rank {rank}: input and compute" for rank in range(4, 12)),
    ]
    assert len(drawn(draw_shares).get_yticks()) == 8


@pytest.mark.slow
def test_a_first_start_that_left_no_record(write, folder, page):
    write([(1, TIMES, {"loss": 1.0})], 1)
    note_end(folder / "logs", End(0, 1e9, 1e9 + 30, "rank 1 failed.", None))

    happened = page().sections["What happened"]

    assert "the first start; no epoch ended." in happened[0]
    assert "rank 1 failed." in happened[1]
    assert happened[2].startswith("restart 1: epochs 1 to 1 ended; its end is not")


@pytest.mark.slow
def test_damaged_files_are_left_out(job, folder, page):
    (folder / "logs" / "job.jsonl").write_text('[]\n{"start": 1e400}\n\n{"start"')
    (folder / "logs" / "restart1" / "rank.1.flight").write_text("a")

    found = page()

    assert found.sections["What happened"] == [
        "the first start: epochs 1 to 2 ended; its end is not recorded, or it runs "
        "still.",
        "restart 1: epochs 2 to 3 ended; its end is not recorded, or it runs still.",
    ]
    damaged, missing = found.sections["Remarks"]
    assert "is not a whole flight record" in damaged
    assert missing.startswith("Without a record: rank 1 of 2.")


@pytest.mark.parametrize(
    "line",
    [
        {"times": [1.0]},
        {"times": 3},
        {"epoch": 10**30},
        {"ended": 1e300},
        {"logs": 1},
    ],
    ids=str,
)
def test_a_record_with_an_impossible_epoch_is_refused(line, write, refusal):
    write(lines=[{**epoch_line(1), **line}])

    assert "is not a whole flight record" in refusal("report", "logs")


def test_refusals(job, folder, refusal):
    (folder / "empty").mkdir()

    for words, said in {
        ("none", "--html", "a.html"): "DIR must be a folder. Received: none.",
        ("empty",): "DIR must hold flight records, rank.N.flight. Received: empty.",
        (job, "--html", "no/a.html"): "--html must be a file in a folder that exists",
        (job, "1.json"): "A report on a job takes its folder and --html",
        (job, "--plot", "a.png"): "Received: logs, and other options. Report on the",
        (job, "--json"): "Received: logs, and other options. Report on the folder",
        ("1.json", "2.json", "--html", "a.html"): "A report on a job takes its folder",
        ("1.json", "--html", "a.html"): "DIR must be a folder. Received: 1.json.",
    }.items():
        assert said in " ".join(refusal("report", *words).split()), words
    assert not [*folder.glob("*.html")]
