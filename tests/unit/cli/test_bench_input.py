"""`tfdist bench input`: what it reads and prints; nothing is measured."""

from tfdist_cli import bench_input as bench_module
from tfdist_cli.bench import add_parser
from tfdist_cli.bench_input import input_table
from tfdist_cli.parser import Parser

NAMES = ("naive", "sequential", "tuned", "tfdist", "cached")


def spread(median):
    return {"median": median, "low": median - 0.1, "high": median + 0.1}


def figures():
    verdict = {"added_share": spread(0.25), "is_bound": True}
    free = {"added_share": spread(-0.01), "is_bound": False}
    return {
        "cores": 2,
        "epochs": 5,
        "examples_per_second": dict.fromkeys(NAMES, 1234.4),
        "speed_against": dict.fromkeys(NAMES[:3], spread(1.5)),
        "run_speed_against": dict.fromkeys(NAMES[:3], spread(4.0)),
        "training_examples_per_second": dict.fromkeys(("none", *NAMES), 900.0),
        "input": {**dict.fromkeys(NAMES, verdict), "cached": free},
    }


def bench(*arguments):
    parser = Parser(prog="tfdist", allow_abbrev=False)
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["bench", "input", *arguments])
    return args.func(args)


def test_what_is_read_and_printed(monkeypatch, capsys):
    calls = []

    def run_input(*args, **options):
        calls.append((args, options))
        return figures()

    monkeypatch.setattr(bench_module, "run_input", run_input)
    assert bench() == 0
    assert bench("--cores", "1", "--epochs", "3") == 0

    defaults = {
        "examples": 512,
        "image_size": 256,
        "batch_size": 32,
        "epochs": 5,
        "repeats": 10,
    }
    assert calls == [((2,), defaults), ((1,), {**defaults, "epochs": 3})]
    assert capsys.readouterr().out == f"{input_table(figures())}\n" * 2


def test_the_table():
    header, _, *rows, _, need = input_table(figures()).splitlines()
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]

    assert "2 cores" in header
    assert "5 epochs with cache=True" in header
    assert len(rows) == 5
    assert cells[0][1:] == [
        "1,234",
        "1.50 [1.40, 1.60]",
        "4.00 [3.90, 4.10]",
        "900",
        "25%, input-bound",
    ]
    assert cells[4][1:] == ["1,234", "", "", "900", "0%, not input-bound"]
    assert need == "The steps alone need 900 examples per second."
