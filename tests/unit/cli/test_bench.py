"""`tfdist bench`: its options, errors and tables; nothing is measured."""

import json
import sys

import pytest

from tfdist.benchmarks import BenchmarkError
from tfdist_cli import bench as bench_module
from tfdist_cli.main import main
from tfdist_cli.plots import draw_allreduce, new_figure


def spread(median):
    return {"median": median, "low": median - 0.1, "high": median + 0.1}


ALLREDUCE = {
    "bytes": 8 * 2**20,
    "seconds": {"tfdist": 0.0105, "single_ring": 0.021},
    "bus_bytes_per_second": {"tfdist": 8e8, "single_ring": 4e8},
    "bandwidth_against": {"single_ring": spread(2.0)},
}


@pytest.fixture
def calls(monkeypatch):
    """Return the calls of the benchmark, which returns the figures above or fails."""
    calls = []

    def run_allreduce(processes, *args, **options):
        calls.append((processes, *args, options))
        if processes == 1:
            raise BenchmarkError("plain: rank 0 failed", exit_code=3)
        return [ALLREDUCE]

    monkeypatch.setattr(bench_module, "run_allreduce", run_allreduce)
    return calls


def bench(*arguments):
    return main(["bench", *arguments])


def cells(table):
    """Return the cells of a table, without its ruler."""
    header, _, *rows = table.splitlines()
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in (header, *rows)]


def test_the_defaults(calls):
    assert bench("allreduce") == 0

    kib, mib = 2**10, 2**20
    sizes = [kib, 16 * kib, 256 * kib, mib, 4 * mib, 8 * mib, 32 * mib, 64 * mib]
    assert calls == [(2, sizes, {"repeats": 30, "collective": "all"})]


def test_every_option_arrives(calls):
    bench(
        *("allreduce", "-np", "3", "--sizes", "1KiB,2MiB", "--repeats", "5"),
        *("--collective", "horovod"),
    )

    options = {"repeats": 5, "collective": "horovod"}
    assert calls == [(3, [1024, 2 * 2**20], options)]


def test_the_table_of_the_all_reduce(calls, capsys):
    bench("allreduce")

    times, ratios = capsys.readouterr().out.split("\n\n")
    assert cells(times) == [
        ["tensor", "through tfdist", "single ring"],
        ["8 MiB", "10.50 ms, 0.80 GB/s", "21.00 ms, 0.40 GB/s"],
    ]
    assert cells(ratios) == [
        ["bandwidth against", "single ring"],
        ["8 MiB", "2.00 [1.90, 2.10]"],
    ]


def test_the_plot_of_the_all_reduce(calls, tmp_path):
    file = tmp_path / "curves.svg"
    bench("allreduce", "--plot", str(file))
    assert file.read_text().startswith("<?xml")

    figure = new_figure(file, 10, 4.5)
    draw_allreduce(figure, [ALLREDUCE], {"tfdist": "ours", "single_ring": "ring"}, file)
    drawn = {
        axes.get_ylabel(): {
            line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()
        }
        for axes in figure.axes
    }
    size = 8 * 2**20
    assert drawn == {
        "time, ms": {"ours": [[size, 10.5]], "ring": [[size, 21.0]]},
        "bus bandwidth, GB/s": {
            "ours": [[size, pytest.approx(0.8)]],
            "ring": [[size, pytest.approx(0.4)]],
        },
    }


def test_a_plot_without_matplotlib_is_refused_at_once(calls, monkeypatch, refusal):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    assert (
        "--plot needs matplotlib. Received: an environment without it. "
        "Run pip install matplotlib, or leave --plot out."
    ) in refusal("bench", "allreduce", "--plot", "curves.svg")
    assert calls == []


def test_json_in_place_of_the_table(calls, capsys):
    bench("allreduce", "--json")

    printed = json.loads(capsys.readouterr().out)
    assert printed["figures"] == [ALLREDUCE]
    assert printed["machine"]["processes"] == 2
    assert {"cores", "python", "tensorflow", "keras"} < printed["machine"].keys()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("allreduce --sizes 8MB", "argument --sizes: A size must be a positive mult"),
        ("allreduce --collective x", "argument --collective: invalid choice: 'x'"),
        ("allreduce --json /tmp", "--json must be a file that can be written. Rec"),
        ("allreduce --plot no/curves.svg", "--plot must be a file in a folder that ex"),
    ],
)
def test_arguments_that_are_rejected(calls, arguments, error, refusal):
    assert error in refusal("bench", *arguments.split())
    assert calls == []


def test_an_error_of_a_benchmark(calls, capsys):
    assert bench("allreduce", "-np", "1") == 3
    expected = "tfdist bench allreduce: plain: rank 0 failed\n"
    assert capsys.readouterr() == ("", expected)
