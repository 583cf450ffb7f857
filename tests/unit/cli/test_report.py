"""`tfdist report`: what it reads, refuses and prints."""

import json
import re
from functools import partial

import pytest

from tfdist.scaling.report import scaling_report
from tfdist.scaling.throughput import EpochRate, Run, text_of_run
from tfdist_cli.plots import draw_scaling, new_figure


@pytest.fixture
def file(folder):
    """Return what writes the file of a run and gives its name."""

    def file(processes, rate, batch=None, name=None, **options):
        name = name or f"{processes}.json"
        run = Run(processes, (EpochRate(rate),), global_batch_size=batch, **options)
        (folder / name).write_text(text_of_run(run))
        return name

    return file


@pytest.fixture
def dgx_1(file):
    """Write a published run of Horovod on a DGX-1, with its batches."""
    return [file(1, 66_176.0, 1024, model="cnn"), file(8, 486_914.0, 16_384)]


@pytest.fixture
def report(printed):
    """Return what prints a report."""
    return partial(printed, "report")


@pytest.fixture
def axes_of(folder):
    """Return what draws rates by number of processes, and returns the axes."""

    def axes_of(**rates):
        runs = {
            name: Run(int(name[1:]), (EpochRate(rate),)) for name, rate in rates.items()
        }
        file = folder / "x.svg"
        figure = new_figure(file, 7, 5)
        draw_scaling(figure, scaling_report(runs), file)
        return figure.axes[0]

    return axes_of


def test_a_published_run(dgx_1, report):
    # 486,914 / 66,176 = 7.358, of 8: 0.92. The fractions and what they allow are worked
    # out in tests/unit/scaling.
    assert report(*dgx_1) == (
        "| processes | global batch | examples per second | speed-up | efficiency |\n"
        "| :-------- | -----------: | ------------------: | -------: | ---------: |\n"
        "| 1         |        1,024 |            66,176.0 |     1.00 |       1.00 |\n"
        "| 8         |       16,384 |           486,914.0 |     7.36 |       0.92 |\n"
        "\n"
        "Model: cnn.\n"
        "Neither weak nor strong scaling: the global batch and that of each process "
        "both\n"
        "change, so that the speed-up is of the batch, too. Hold one of them still.\n"
        "\n"
        "| speed-up by the law of          | serial fraction | on 8 | on 64 | on 1,024 "
        "| limit |\n"
        "| :------------------------------ | --------------: | ---: | ----: | -------: "
        "| ----: |\n"
        "| Amdahl: the work stays the same |          0.0125 | 7.36 | 35.85 |    74.45 "
        "| 80.21 |\n"
        "| Gustafson: the work grows       |          0.0917 | 7.36 | 58.22 |   930.16 "
        "|  none |\n"
    )


# Processes, examples per second and perhaps a global batch of each run.
@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([(1, 100.0, 64), (2, 200.0, 64)], "Strong scaling: .* batch is always 64,"),
        ([(1, 100.0, 64), (2, 200.0, 128)], "Weak scaling: .* process is always 64,"),
        ([(1, 100.0, 64), (2, 200.0)], "Strong or weak .* Not every file says its"),
        ([(2, 100.0), (4, 150.0)], "No run has one process: .* are against 2 proces"),
        ([(2, 100.0), (4, 150.0)], r"\| speed-up against 2 by the law of \|"),
        ([(1, 100.0), (2, 80.0)], "More processes are slower here than fewer"),
        ([(1, 100.0), (2, 220.0)], "This is better than perfect"),
    ],
)
def test_what_is_said(runs, said, file, report):
    out = report(*(file(*run) for run in runs))

    assert re.search(said, " ".join(out.split()))


def test_different_versions_are_said(file, report):
    old, new = ({"versions": {"keras": version}} for version in ("3.14.0", "3.15.1"))
    out = report(file(1, 100.0, **old), file(2, 150.0, **new))

    assert "The runs were made by different versions of keras: 3.14.0, 3.15.1.\n" in out


def test_units_have_a_column(file, report):
    tokens = {"units_per_example": {"tokens": 512}}
    out = report(file(1, 100.0, **tokens), file(2, 150.0, **tokens))

    header, _, one, two = [line.split("|") for line in out.splitlines()[:4]]
    assert header[4].strip() == "tokens per second"
    assert (one[4].strip(), two[4].strip()) == ("51,200.0", "76,800.0")


def test_one_number_of_processes(file, report):
    out = report(file(2, 100.0), file(2, 110.0, name="again.json"))

    assert "| 2         |            ? |               105.0 |     1.00 |" in out
    assert "All runs have the same number of processes. Give runs with another" in out
    assert "The rate on 2 is the median of 2 runs.\n" in out
    assert "law of" not in out


@pytest.mark.parametrize(
    ("rate", "is_said"), [(28.0, True), (99.0, True), (101.0, False)]
)
def test_a_small_gain_is_a_reason_to_enlarge_the_batch(
    rate, is_said, file, report, axes_of
):
    out = report(file(1, 100.0), file(2, rate))

    assert ("Enlarge the batch, so that each process" in out) is is_said
    title = axes_of(n1=100.0, n2=rate).get_title()
    assert ("enlarge the batch" in title) is is_said


def test_the_legend_covers_nothing(axes_of):
    axes = axes_of(n1=100.0, n2=28.0)

    (legend,) = axes.figure.legends
    assert legend.get_window_extent().y1 <= axes.bbox.y0
    assert len(legend.get_texts()) == len(axes.get_lines())


def test_json_in_place_of_the_tables(dgx_1, report):
    found = json.loads(report(*dgx_1, "--json"))

    assert (found["model"], found["scaling"]) == ("cnn", "mixed")
    assert [row["processes"] for row in found["rows"]] == [1, 8]
    assert found["amdahl"]["serial_fraction"] == pytest.approx(0.012467, abs=1e-6)
    assert found["gustafson"]["speedups"]["64"] == pytest.approx(58.22, abs=0.01)
    assert found["gustafson"]["limit"] is None


def test_files_beside_the_tables(dgx_1, folder, report):
    out = report(*dgx_1, "--json", "report.json", "--plot", "scaling.png")

    assert out.startswith("| processes |")
    assert json.loads((folder / "report.json").read_text())["model"] == "cnn"
    assert (folder / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_a_file_of_something_else(folder, refusal):
    (folder / "notes.txt").write_text("notes")
    (folder / "deep.json").write_text("[" * 10**6)

    problem = "report: error: A file must be one that Throughput wrote. Received: "
    error = refusal("report", "notes.txt")
    assert f"{problem}notes.txt (JSONDecodeError: Expecting value" in error
    for file in ("deep.json", "/dev/zero"):
        assert f"{problem}{file} " in refusal("report", file)


@pytest.mark.parametrize("option", ["--plot", "--json"])
def test_a_folder_that_does_not_exist(option, dgx_1, refusal):
    assert (
        f"{option} must be a file in a folder that exists. "
        "Received: no/file.png. Make the folder no first."
    ) in refusal("report", *dgx_1, option, "no/file.png")


def test_what_the_plot_shows(axes_of):
    axes = axes_of(n2=100.0, n4=160.0)

    found = {line.get_label(): line.get_xydata() for line in axes.get_lines()}
    assert found["measured"].tolist() == [[2.0, 1.0], [4.0, 1.6]]
    # (1 / 1.6 - 1 / 2) / (1 / 2) and (1 - 0.8) / (1 / 2); 16 processes are 8 units:
    # 1 / (0.25 + 0.75 / 8) and 8 - 7 * 0.4.
    ends = {label: points[-1].tolist() for label, points in found.items()}
    assert ends["perfect"] == pytest.approx([16.0, 8.0])
    assert ends["Amdahl, serial fraction 0.2500"] == pytest.approx([16.0, 2.909091])
    assert ends["Gustafson, serial fraction 0.4000"] == pytest.approx([16.0, 5.2])
    assert axes.get_ylabel() == "speed-up against 2 processes"


@pytest.mark.parametrize(
    ("rates", "labels"),
    [
        ({"n2": 100.0}, ["perfect", "measured"]),
        (
            {"n2": 100.0, "n4": 199.9},
            [
                "perfect; Amdahl, serial fraction 0.0005; "
                "Gustafson, serial fraction 0.0010",
                "measured",
            ],
        ),
    ],
)
def test_curves_that_look_like_one_are_drawn_once(rates, labels, axes_of):
    assert [line.get_label() for line in axes_of(**rates).get_lines()] == labels
