"""`tfdist report`: what it reads, refuses and prints."""

import json
import sys

import pytest
from matplotlib.figure import Figure

from tfdist.scaling.throughput import EpochRate, Run, text_of_run
from tfdist_cli.main import main


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Be in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


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


def report(capsys, *arguments):
    """Return what the command prints."""
    assert main(["report", *arguments]) == 0
    return capsys.readouterr().out


def error_of(capsys, *arguments):
    """Return the error with which the command ends."""
    with pytest.raises(SystemExit, match="2"):
        main(["report", *arguments])
    return capsys.readouterr().err


def test_a_published_run(dgx_1, capsys):
    # 486,914 / 66,176 = 7.358, of 8: 0.92. The fractions and what they allow are worked
    # out in tests/unit/scaling.
    assert report(capsys, *dgx_1) == (
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


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ((64, 64), "Strong scaling: the global batch is always 64, and the processes"),
        ((64, 128), "Weak scaling: the batch of each process is always 64, and the"),
        ((64, None), "Strong or weak scaling? Not every file says its global batch."),
    ],
)
def test_the_kind_of_scaling_is_said(batches, expected, file, capsys):
    files = [
        file(n, 100.0 * n, batch) for n, batch in zip((1, 2), batches, strict=True)
    ]

    assert report(capsys, *files).splitlines()[5].startswith(expected)


def test_units_have_a_column(file, capsys):
    tokens = {"units_per_example": {"tokens": 512}}
    out = report(capsys, file(1, 100.0, **tokens), file(2, 150.0, **tokens))

    header, _, one, two = [line.split("|") for line in out.splitlines()[:4]]
    assert header[4].strip() == "tokens per second"
    assert (one[4].strip(), two[4].strip()) == ("51,200.0", "76,800.0")


def test_without_one_process_the_base_is_said(file, capsys):
    out = report(capsys, file(2, 100.0), file(4, 150.0))

    said = " ".join(out.split())
    assert "No run has one process: speed-up and efficiency are against 2 pro" in said
    assert "| speed-up against 2 by the law of |" in out


def test_one_number_of_processes(file, capsys):
    out = report(capsys, file(2, 100.0), file(2, 110.0, name="again.json"))

    assert "| 2         |            ? |               105.0 |     1.00 |" in out
    assert "All runs have the same number of processes. Give runs with another" in out
    assert "The rate on 2 is the median of 2 runs.\n" in out
    assert "law of" not in out


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (80.0, "More processes are slower here than fewer"),
        (220.0, "This is better than perfect"),
    ],
)
def test_what_no_law_explains_is_said(rate, expected, file, capsys):
    assert expected in report(capsys, file(1, 100.0), file(2, rate))


@pytest.mark.parametrize(
    ("rate", "is_said"), [(28.0, True), (99.0, True), (101.0, False)]
)
def test_a_small_gain_is_a_reason_to_enlarge_the_batch(
    rate, is_said, file, monkeypatch, capsys
):
    saved = []
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *_, **__: saved.append(figure)
    )
    out = report(capsys, file(1, 100.0), file(2, rate), "--plot", "x.svg")

    assert ("Enlarge the batch, so that each process" in out) is is_said
    assert ("enlarge the batch" in saved[0].axes[0].get_title()) is is_said


def test_the_legend_covers_nothing(file, folder, monkeypatch, capsys):
    saved = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda *of, **how: (saved.append(of[0]), save(*of, **how))
    )
    report(capsys, file(1, 100.0), file(2, 28.0), "--plot", "x.png")

    (figure,) = saved
    legend, axes = figure.legends[0].get_window_extent(), figure.axes[0].bbox
    assert legend.y1 <= axes.y0
    assert len(figure.legends[0].get_texts()) == len(figure.axes[0].get_lines())


def test_different_versions_are_said(file, capsys):
    out = report(
        capsys,
        file(1, 100.0, versions={"keras": "3.14.0"}),
        file(2, 150.0, versions={"keras": "3.15.1"}),
    )

    assert "The runs were made by different versions of keras: 3.14.0, 3.15.1.\n" in out


def test_json_in_place_of_the_tables(dgx_1, capsys):
    found = json.loads(report(capsys, *dgx_1, "--json"))

    assert (found["model"], found["scaling"]) == ("cnn", "mixed")
    assert [row["processes"] for row in found["rows"]] == [1, 8]
    assert found["rows"][1]["efficiency"] == pytest.approx(0.9197, abs=5e-5)
    assert found["amdahl"]["serial_fraction"] == pytest.approx(0.012467, abs=1e-6)
    assert found["gustafson"]["speedups"]["64"] == pytest.approx(58.22, abs=0.01)
    assert found["gustafson"]["limit"] is None


def test_json_beside_the_tables(dgx_1, folder, capsys):
    out = report(capsys, *dgx_1, "--json", "report.json")

    assert out.startswith("| processes |")
    assert json.loads((folder / "report.json").read_text())["model"] == "cnn"


def test_a_file_of_something_else(folder, capsys):
    (folder / "notes.txt").write_text("notes")

    assert (
        "tfdist report: error: A file must be one that Throughput wrote. "
        "Received: notes.txt (JSONDecodeError: Expecting value"
    ) in error_of(capsys, "notes.txt")


def test_a_file_without_an_end_or_a_floor(folder, capsys):
    (folder / "deep.json").write_text("[" * 10**6)
    for file in ("deep.json", "/dev/zero"):
        assert f"A file must be one that Throughput wrote. Received: {file} " in (
            error_of(capsys, file)
        )


@pytest.mark.parametrize("option", ["--plot", "--json"])
def test_a_folder_that_does_not_exist(option, dgx_1, capsys):
    assert (
        f"{option} must be a file in a folder that exists. "
        "Received: no/file.png. Make the folder no first."
    ) in error_of(capsys, *dgx_1, option, "no/file.png")


def test_a_plot_without_matplotlib(dgx_1, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    assert (
        "--plot needs matplotlib. Received: an environment without it. "
        "Run pip install matplotlib, or leave --plot out."
    ) in error_of(capsys, *dgx_1, "--plot", "scaling.png")


def test_a_plot_beside_the_tables(dgx_1, folder, capsys):
    assert report(capsys, *dgx_1, "--plot", "scaling.png").startswith("| processes |")
    assert (folder / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_what_the_plot_shows(file, monkeypatch, capsys):
    saved = []
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *_, **__: saved.append(figure)
    )
    report(capsys, file(2, 100.0), file(4, 160.0), "--plot", "x.svg")
    report(capsys, file(2, 100.0), "--plot", "x.svg")
    report(capsys, file(2, 100.0), file(4, 199.9), "--plot", "x.svg")

    axes, alone, perfect = (figure.axes[0] for figure in saved)
    found = {line.get_label(): line.get_xydata() for line in axes.get_lines()}
    assert found["measured"].tolist() == [[2.0, 1.0], [4.0, 1.6]]
    # (1 / 1.6 - 1 / 2) / (1 / 2) and (1 - 0.8) / (1 / 2); 16 processes are 8 units:
    # 1 / (0.25 + 0.75 / 8) and 8 - 7 * 0.4.
    ends = {label: points[-1].tolist() for label, points in found.items()}
    assert ends["perfect"] == pytest.approx([16.0, 8.0])
    assert ends["Amdahl, serial fraction 0.2500"] == pytest.approx([16.0, 2.909091])
    assert ends["Gustafson, serial fraction 0.4000"] == pytest.approx([16.0, 5.2])
    assert axes.get_ylabel() == "speed-up against 2 processes"
    assert [line.get_label() for line in alone.get_lines()] == ["perfect", "measured"]
    one = "perfect; Amdahl, serial fraction 0.0005; Gustafson, serial fraction 0.0010"
    assert [line.get_label() for line in perfect.get_lines()] == [one, "measured"]
