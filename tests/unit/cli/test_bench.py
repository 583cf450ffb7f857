"""`tfdist bench`: its options, errors and tables; nothing is measured."""

import json
import sys

import pytest
from matplotlib.figure import Figure

from tfdist.benchmarks import BenchmarkError, JobSetup
from tfdist_cli import bench as bench_module
from tfdist_cli.main import main


def spread(median):
    return {"median": median, "low": median - 0.1, "high": median + 0.1}


ALLREDUCE = {
    "bytes": 8 * 2**20,
    "seconds": {"tfdist": 0.0105, "single_ring": 0.021},
    "bus_bytes_per_second": {"tfdist": 8e8, "single_ring": 4e8},
    "bandwidth_against": {"single_ring": spread(2.0)},
}
SERVERS = {
    "steps_per_second": spread(100.0),
    "processor_seconds_per_step": spread(0.0105),
    "bytes_per_step": spread(2.0 * 2**20),
    "staleness": {"median": 1, "percentile_99": 3, "largest": 7},
}


def training(batch_size):
    kinds = ("plain", "alone", "apart", "weak", "strong")
    return {
        "batch_size": batch_size,
        "processes": 2,
        "step_seconds": {kind: i / 1000 for i, kind in enumerate(kinds, 1)},
        "speed_against_plain": spread(1.0),
        "weak_efficiency": spread(0.8),
        "strong_efficiency": spread(0.7),
        "waiting_share": spread(0.2),
    }


@pytest.fixture
def calls(monkeypatch):
    """Return the calls of the benchmarks, which return the figures above."""
    calls = []

    def fake(name, result_of):
        def measure(*args, **options):
            calls.append((name, args, options))
            return result_of(*args)

        monkeypatch.setattr(bench_module, f"run_{name}", measure)

    fake("allreduce", lambda *_: [ALLREDUCE])
    fake("training", lambda size, batch_size: training(batch_size))
    fake("parameter_server", lambda setup, strategy, count: SERVERS)
    return calls


def bench(*arguments):
    return main(["bench", *arguments])


def cells(table):
    """Return the cells of a table, without its ruler."""
    header, _, *rows = table.splitlines()
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in (header, *rows)]


def test_the_defaults(calls):
    names = ("allreduce", "training", "parameter-server")
    assert [bench(name) for name in names] == [0, 0, 0]

    kib, mib = 2**10, 2**20
    sizes = [kib, 16 * kib, 256 * kib, mib, 4 * mib, 8 * mib, 32 * mib, 64 * mib]
    of_training = {
        **{"steps": 10, "repeats": 10},
        **{"collective": "tensorflow", "compression": "none"},
    }
    strategy = {"consistency": "async", "max_staleness": None}
    setup = JobSetup(2, 1, 240, 8)
    assert calls == [
        ("allreduce", (2, sizes), {"repeats": 30, "collective": "all"}),
        ("training", (2, 64), of_training),
        ("training", (2, 512), of_training),
        ("parameter_server", (setup, strategy, 1), {}),
        ("parameter_server", (setup, strategy, 8), {}),
    ]


def test_every_option_arrives(calls):
    bench(
        *("allreduce", "-np", "3", "--sizes", "1KiB,2MiB", "--repeats", "5"),
        *("--collective", "horovod"),
    )
    options = ["--batch-sizes", "8", "--steps", "4", "--repeats", "5"]
    bench("training", *options, "--compression", "bf16", "--collective", "horovod")
    bench(
        *("parameter-server", "--workers", "3", "--ps", "2", "--steps", "16"),
        *("--input", "workers", "--consistency", "bounded", "--max-staleness", "5"),
        *("--steps-per-execution", "4", "--repeats", "4"),
    )

    of_training = {
        **{"steps": 4, "repeats": 5},
        **{"collective": "horovod", "compression": "bf16"},
    }
    strategy = {"consistency": "bounded", "max_staleness": 5}
    assert calls == [
        (
            *("allreduce", (3, [1024, 2 * 2**20])),
            {"repeats": 5, "collective": "horovod"},
        ),
        ("training", (2, 8), of_training),
        ("parameter_server", (JobSetup(3, 2, 16, 4, "workers"), strategy, 4), {}),
    ]


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


def test_the_plot_of_the_all_reduce(calls, monkeypatch, tmp_path):
    saved = []
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *_, **__: saved.append(figure)
    )
    bench("allreduce", "--plot", str(tmp_path / "curves.svg"))

    [figure] = saved
    drawn = {
        axes.get_ylabel(): {
            line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()
        }
        for axes in figure.axes
    }
    size = 8 * 2**20
    assert drawn == {
        "time, ms": {
            "through tfdist": [[size, 10.5]],
            "single ring": [[size, 21.0]],
        },
        "bus bandwidth, GB/s": {
            "through tfdist": [[size, pytest.approx(0.8)]],
            "single ring": [[size, pytest.approx(0.4)]],
        },
    }


def test_a_plot_without_matplotlib_is_refused_at_once(calls, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit, match="2"):
        bench("allreduce", "--plot", "curves.svg")

    assert "--plot needs matplotlib. Received: an env" in capsys.readouterr().err
    assert calls == []


def test_the_table_of_training_has_a_column_for_each_batch_size(calls, capsys):
    bench("training")

    header, *rows = cells(capsys.readouterr().out)
    assert header == ["2 processes", "batch 64", "batch 512"]
    assert [row[1] for row in rows] == [
        *("1.00 ms", "2.00 ms", "3.00 ms", "4.00 ms", "5.00 ms"),
        *("1.00 [0.90, 1.10]", "0.80 [0.70, 0.90]"),
        *("0.70 [0.60, 0.80]", "0.20 [0.10, 0.30]"),
    ]
    assert all(row[1] == row[2] for row in rows)


def test_the_table_of_parameter_servers(calls, monkeypatch, capsys):
    bench("parameter-server")

    assert cells(capsys.readouterr().out) == [
        ["2 workers, 1 ps, async", "1 in one go", "8 in one go"],
        ["steps per second", "100.00", "100.00"],
        ["processor time of a step", "10.50 ms", "10.50 ms"],
        ["bytes of a step", "2.00 MiB", "2.00 MiB"],
        ["updates that a gradient missed: median, 99 %, most", "1, 3, 7", "1, 3, 7"],
    ]
    monkeypatch.setitem(SERVERS, "bytes_per_step", None)
    bench("parameter-server")
    assert "not counted: no `ss` (iproute2)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "processes"), [("allreduce", 2), ("parameter-server --workers 3", 5)]
)
def test_json_in_place_of_the_table(calls, capsys, arguments, processes):
    bench(*arguments.split(), "--json")

    printed = json.loads(capsys.readouterr().out)
    assert len(printed["figures"]) == len(calls)
    assert printed["machine"]["processes"] == processes
    assert {"cores", "python", "tensorflow", "keras"} < printed["machine"].keys()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("", "the following arguments are required: BENCHMARK"),
        ("allreduce --sizes 8MB", "argument --sizes: A size must be a positive mult"),
        ("training --batch-sizes 64,0", "hold positive whole numbers. Received: '0'."),
        ("training --compression zip", "argument --compression: invalid choice: 'zip'"),
        ("training --json /tmp", "--json must be a file that can be written. Received"),
        ("allreduce --plot no/curves.svg", "--plot must be a file in a folder that ex"),
        ("training --json no/such/f.json", "--json must be a file in a folder that ex"),
        ("parameter-server --workers 0", "workers must be at least 1. Received: work"),
    ],
)
def test_arguments_that_are_rejected(calls, arguments, error, capsys):
    with pytest.raises(SystemExit, match="2"):
        bench(*arguments.split())

    assert error in capsys.readouterr().err
    assert calls == []


def test_an_error_of_a_benchmark(monkeypatch, capsys):
    def fail(*arguments, **options):
        raise BenchmarkError("plain: rank 0 failed", exit_code=3)

    monkeypatch.setattr(bench_module, "run_allreduce", fail)
    assert bench("allreduce") == 3
    expected = "tfdist bench allreduce: plain: rank 0 failed\n"
    assert capsys.readouterr() == ("", expected)
