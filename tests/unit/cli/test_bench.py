"""`tfdist bench`: what it reads, refuses and prints; nothing is measured."""

import json

import pytest

from tfdist.benchmarks import BenchmarkError
from tfdist_cli import bench as bench_module
from tfdist_cli.bench import add_parser
from tfdist_cli.parser import Parser

HOROVOD_ALLREDUCE = [
    {
        "bytes": 1024,
        "seconds": dict.fromkeys(("tfdist", "graph", "eager"), 0.001),
        "bus_bytes_per_second": dict.fromkeys(("tfdist", "graph", "eager"), 1e6),
        "share_of_bandwidth": dict.fromkeys(
            ("graph", "eager"), {"median": 1.0, "low": 0.9, "high": 1.1}
        ),
    }
]
ALLREDUCE = [
    {
        "bytes": 1024,
        "seconds": 0.001,
        "bus_bytes_per_second": 1e6,
        "single_ring_seconds": 0.002,
        "times_single_ring": {"median": 2.0, "low": 1.9, "high": 2.1},
    }
]


@pytest.fixture
def calls(monkeypatch):
    """Return what is asked to be measured."""
    calls = []

    def fake(name, result):
        def measure(*args, **options):
            calls.append((name, args, options))
            return result

        monkeypatch.setattr(bench_module, f"run_{name}", measure)

    fake("allreduce", ALLREDUCE)
    fake("training", {"batch_size": 64})
    fake("horovod_allreduce", HOROVOD_ALLREDUCE)
    fake("horovod_training", {"batch_size": 64})
    fake("memory", {"models": []})
    fake("backup", {"processes": 2})
    for name in ("training", "horovod_training", "memory", "backup"):
        monkeypatch.setattr(
            bench_module, f"{name}_table", lambda figures: f"table of {figures}"
        )
    return calls


def bench(*arguments):
    parser = Parser(prog="tfdist", allow_abbrev=False)
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["bench", *arguments])
    return args.func(args)


def test_the_defaults(calls):
    names = ("allreduce", "training", "memory", "backup")
    assert [bench(name) for name in names] == [0, 0, 0, 0]

    kib, mib = 2**10, 2**20
    sizes = [kib, 16 * kib, 256 * kib, mib, 4 * mib, 8 * mib, 32 * mib, 64 * mib]
    training = {"steps": 10, "repeats": 10, "compression": "none"}
    assert calls == [
        ("allreduce", (2, sizes), {"repeats": 30}),
        ("training", (2, 64), training),
        ("training", (2, 512), training),
        ("memory", (2,), {}),
        ("backup", (2,), {"epochs": 6, "repeats": 16}),
    ]


def test_every_option_arrives(calls):
    bench("allreduce", "-np", "3", "--sizes", "1KiB,2MiB", "--repeats", "5")
    training = ["--batch-sizes", "8", "--steps", "4", "--repeats", "5"]
    bench("training", *training, "--compression", "bf16")
    bench("memory", "-np", "3")
    bench("backup", "-np", "3", "--epochs", "4", "--repeats", "5")

    assert calls == [
        ("allreduce", (3, [1024, 2 * 2**20]), {"repeats": 5}),
        ("training", (2, 8), {"steps": 4, "repeats": 5, "compression": "bf16"}),
        ("memory", (3,), {}),
        ("backup", (3,), {"epochs": 4, "repeats": 5}),
    ]


def test_on_horovod_other_things_are_compared(calls, capsys):
    bench("allreduce", "--collective", "horovod", "--sizes", "1KiB")
    bench("training", "--collective", "horovod", "--batch-sizes", "8")

    training = {"steps": 10, "repeats": 10, "compression": "none"}
    assert calls == [
        ("horovod_allreduce", (2, [1024]), {"repeats": 30}),
        ("horovod_training", (2, 8), training),
    ]
    assert "hvd.allreduce, eager" in capsys.readouterr().out


def test_horovod_that_is_not_installed(monkeypatch, capsys):
    def fail(*arguments, **options):
        raise ModuleNotFoundError("A Horovod job needs Horovod")

    monkeypatch.setattr(bench_module, "run_horovod_allreduce", fail)

    with pytest.raises(SystemExit, match="2"):
        bench("allreduce", "--collective", "horovod")

    assert "error: A Horovod job needs Horovod" in capsys.readouterr().err


def test_a_table_is_printed(calls, capsys):
    bench("allreduce")

    assert "| 1 KiB  |    1.00 ms |" in capsys.readouterr().out


def test_json_in_place_of_the_table(calls, capsys):
    bench("allreduce", "--json")

    printed = json.loads(capsys.readouterr().out)
    assert printed["figures"] == ALLREDUCE
    assert printed["machine"]["processes"] == 2
    assert {"cores", "python", "tensorflow", "keras"} < printed["machine"].keys()


def test_json_in_a_file_beside_the_table(calls, capsys, tmp_path):
    file = tmp_path / "figures.json"

    bench("allreduce", "--json", str(file))

    assert json.loads(file.read_text())["figures"] == ALLREDUCE
    assert "1 KiB" in capsys.readouterr().out


def test_the_compressions_are_those_of_the_strategy(calls):
    from tfdist.gradients import check_compression

    for name in bench_module._COMPRESSIONS:
        check_compression(name)
        assert bench("training", "--compression", name) == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("", "the following arguments are required: BENCHMARK"),
        ("speed", "invalid choice: 'speed'"),
        ("allreduce --sizes 8MB", "argument --sizes: A size must be a whole number"),
        ("allreduce --sizes 1KiB,", "Received: ''. Write it as 64KiB or 8MiB."),
        ("allreduce --sizes 10", "multiple of 4 bytes"),
        ("training --batch-sizes 64,0", "A batch size must be a positive whole number"),
        ("training --batch-sizes x", "Received: 'x'. Write several as 64,512."),
        (
            "training --compression zip",
            "argument --compression: There is no such compression. Received: 'zip'. "
            "Use one of none, fp16, bf16.",
        ),
        (
            "allreduce --collective mpi",
            "There is no such collective. Received: 'mpi'. "
            "Use one of tensorflow, horovod.",
        ),
        ("memory --collective horovod", "unrecognized arguments: --collective"),
        ("training --steps two", "argument --steps: invalid int value: 'two'"),
        ("memory --json no/such/f.json", "--json must be a file in a folder that exis"),
    ],
)
def test_what_is_refused(calls, arguments, error, capsys):
    with pytest.raises(SystemExit, match="2"):
        bench(*arguments.split())

    assert error in capsys.readouterr().err
    assert calls == []


def test_what_the_benchmark_refuses(capsys):
    with pytest.raises(SystemExit, match="2"):
        bench("allreduce", "-np", "1")

    message = capsys.readouterr().err
    assert message.startswith("tfdist bench allreduce: error: size (-np) must be at")


def test_a_benchmark_that_fails(calls, monkeypatch, capsys):
    def fail(size):
        raise BenchmarkError("plain: rank 0 failed", exit_code=3)

    monkeypatch.setattr(bench_module, "run_memory", fail)

    assert bench("memory") == 3
    assert capsys.readouterr() == ("", "tfdist bench memory: plain: rank 0 failed\n")
