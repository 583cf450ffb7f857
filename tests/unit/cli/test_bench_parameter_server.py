"""`tfdist bench parameter-server`: what it reads and prints; nothing is measured."""

import pytest

from tfdist.benchmarks import JobSetup
from tfdist_cli import bench_parameter_server as bench_module
from tfdist_cli.bench import add_parser
from tfdist_cli.bench_parameter_server import (
    embedding_table,
    slow_worker_table,
    speed_table,
)
from tfdist_cli.parser import Parser


def spread(median):
    return {"median": median, "low": median - 0.1, "high": median + 0.1}


def job(sent=2.0 * 2**20):
    return {
        "steps_per_second": spread(100.0),
        "processor_seconds_per_step": spread(0.0105),
        "bytes_per_step": None if sent is None else spread(sent),
    }


def speed(steps_per_execution=1, names=("tfdist", "tf_keras", "loop"), **of_job):
    others = names[1:]
    return {
        "workers": 2,
        "ps": 1,
        "source": "chief",
        "consistency": "async",
        "steps_per_execution": steps_per_execution,
        "jobs": {name: job(**of_job) for name in names},
        "speed_against": {name: spread(1.5) for name in others},
        "thrift_against": {name: spread(1.25) for name in others},
        "staleness": {"median": 1, "percentile_99": 3, "largest": 7},
    }


SLOW = {
    "async": {
        "steps_per_second": {
            "worker": spread(20.0),
            "slow_worker": spread(10.0),
            "both": spread(29.0),
        },
        "kept_speed": spread(0.97),
    },
    "backup": {
        "steps_per_second": {"even": spread(9.0), "one_slow": spread(8.5)},
        "kept_speed": spread(0.94),
    },
}
EMBEDDING = {
    "optimizer": "sgd",
    "is_sharded": False,
    "touched_bytes": 2**20,
    "bytes_per_step": 2.5 * 2**20,
    "times_touched": 2.5,
}


@pytest.fixture
def calls(monkeypatch):
    """Return what is asked to be measured."""
    calls = []

    def fake(name, result):
        def measure(*args, **options):
            calls.append((name, args, options))
            return result

        monkeypatch.setattr(bench_module, name, measure)

    fake("run_parameter_server", speed())
    fake("run_slow_worker", SLOW)
    fake("run_embedding", [EMBEDDING])
    return calls


def bench(*arguments):
    parser = Parser(prog="tfdist", allow_abbrev=False)
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["bench", "parameter-server", *arguments])
    return args.func(args)


def test_the_defaults(calls, capsys):
    assert bench() == 0

    setup = JobSetup(2, 1, 240, 8)
    options = {"consistency": "async", "max_staleness": None}
    assert calls == [
        ("run_parameter_server", (setup, count), options) for count in (1, 8)
    ]
    assert "steps per second: tfdist" in capsys.readouterr().out


def test_every_option_arrives(calls):
    bench(
        *("--workers", "3", "--ps", "2", "--steps", "16", "--repeats", "4"),
        *("--input", "workers", "--consistency", "bounded", "--max-staleness", "5"),
        *("--steps-per-execution", "4"),
    )

    setup = JobSetup(3, 2, 16, 4, "workers")
    options = {"consistency": "bounded", "max_staleness": 5}
    assert calls == [("run_parameter_server", (setup, 4), options)]


def test_the_other_figures(calls, capsys):
    assert bench("--figure", "slow-worker") == 0
    assert bench("--figure", "embedding") == 0

    assert [name for name, *_ in calls] == ["run_slow_worker", "run_embedding"]
    printed = capsys.readouterr().out
    assert "async: speed kept, of the sum" in printed
    assert "sent / touched" in printed


def test_json_says_how_many_processes_there_were(calls, capsys):
    bench("--json", "--workers", "3")

    assert '"processes": 5' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("--figure size", "There is no such figure. Received: 'size'."),
        ("--steps-per-execution 0", "A number of steps must be a positive whole"),
        ("--workers 0", "workers must be at least 1. Received: workers=0."),
        ("-np 2", "unrecognized arguments: -np"),
    ],
)
def test_what_is_refused(calls, arguments, error, capsys):
    with pytest.raises(SystemExit, match="2"):
        bench(*arguments.split())

    assert error in capsys.readouterr().err
    assert calls == []


def test_speed_has_a_column_for_each_way_to_cut_an_epoch():
    lines = speed_table([speed(1), speed(8)]).splitlines()

    assert "2 workers, 1 ps, async, chief reads" in lines[0]
    assert "1 in one go" in lines[0]
    assert "8 in one go" in lines[0]
    table = "\n".join(lines)
    assert table.count("10.50 ms") == 6
    assert table.count("2.00 MiB") == 6
    assert "thrift against: bare loop, same input" in table
    assert "1.25 [1.15, 1.35]" in table
    assert "1, 3, 7" in table


def test_what_could_not_be_measured():
    table = speed_table([speed(names=("tfdist", "loop"), sent=None)])

    assert "tf-keras is not installed" in table
    assert "not counted: no `ss` (iproute2)" in table


def test_a_slow_worker():
    table = slow_worker_table(SLOW)

    assert "29.0 steps/s" in table
    assert "0.97 [0.87, 1.07]" in table
    assert "backup: speed kept, of those alike" in table


def test_the_bytes_of_a_table():
    uncounted = EMBEDDING | {
        "is_sharded": True,
        "bytes_per_step": None,
        "times_touched": None,
    }

    table = embedding_table([EMBEDDING, uncounted])

    assert "2.50 MiB" in table
    assert "in parts" in table
    assert "not counted" in table
