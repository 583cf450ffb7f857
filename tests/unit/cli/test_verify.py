"""`tfdist verify`: what it reads, refuses and prints; nothing is run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tfdist.first_step.comparison import Cause
from tfdist.verify import Orders, VerifyError
from tfdist.verify.verdict import Group, Verdict
from tfdist_cli import verify as verify_module
from tfdist_cli.main import main

PASSED = Verdict(
    passed=True,
    size=2,
    steps=10,
    rows=64,
    dtype="float32",
    tolerance=1e-4,
    rounding=None,
    groups=(Group("weights", 8, 3e-7, "a/kernel"),),
    first=None,
    cause=None,
    noise=(),
    unequal=(),
)
FAILED = replace(PASSED, passed=False, cause=Cause("a seed", "Seen.", "Do it."))


class FakeVerify:
    """Remembers what it is asked for, and answers as told."""

    def __init__(self):
        self.answer = PASSED
        self.calls = []

    def __call__(self, orders, **options):
        self.calls.append((orders, options))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture(autouse=True)
def verify(folder, monkeypatch):
    """Be in a folder with a script, and run nothing."""
    (folder / "train.py").touch()
    fake = FakeVerify()
    monkeypatch.setattr(verify_module, "verify", fake)
    return fake


def test_the_shortest_call(verify, printed):
    out = printed("verify", "train.py")

    options = {"timeout_seconds": None, "output_directory": None}
    assert verify.calls == [(Orders(("train.py",)), options)]
    assert out.startswith("PASS: 2 processes train train.py as one does (10 steps).\n")
    assert "| weights  |         8 |" in out


def test_every_option_arrives(verify):
    line = "-np 3 --steps 4 --float64 --seed 7 --timeout 60 --output-dir logs"
    script = ["train.py", "--steps", "x"]
    main(["verify", *line.split(), "--strategy", "all_reduce", *script])

    numbers = {"size": 3, "steps": 4, "seed": 7}
    orders = Orders((*script,), float64=True, strategy="all_reduce", **numbers)
    options = {"timeout_seconds": 60.0, "output_directory": Path("logs")}
    assert verify.calls == [(orders, options)]


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("-m json.tool -x", "json.tool -x"),
        ("-- train.py --", "train.py --"),
        ("-- train.py --seed 3", "train.py --seed 3"),
        ("train.py -- --seed 3", "train.py -- --seed 3"),
        ("train.py --epochs 3", "train.py --epochs 3"),
        ("train.py --help", "train.py --help"),
        # Given before the script, too.
        ("--seed 2 train.py --seed 3", "train.py --seed 3"),
    ],
)
def test_what_belongs_to_the_script(verify, line, command):
    assert main(["verify", *line.split()]) == 0

    (orders, _) = verify.calls[0]
    assert " ".join(orders.command) == command
    assert orders.module is line.startswith("-m")


def test_a_fail_is_told_by_the_exit_code(verify, capsys):
    verify.answer = FAILED

    assert main(["verify", "train.py"]) == 1
    assert "Likely cause: a seed.\n  Seen.\n  Fix: Do it." in capsys.readouterr().out


def test_json_in_a_file_beside_the_words(printed, folder):
    assert printed("verify", "--json", "verdict.json", "train.py").startswith("PASS")
    assert json.loads((folder / "verdict.json").read_text())["passed"] is True


def test_a_script_that_could_not_be_run(verify, capsys):
    verify.answer = VerifyError("With one process: no.", 130)

    assert main(["verify", "train.py"]) == 130
    assert capsys.readouterr() == ("", "tfdist verify: With one process: no.\n")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("trian.py", "The script to run does not exist. Received: trian.py"),
        ("bash", "Only a Python script or module can be verified. Received: bash. Gi"),
        (
            "--float64 train.py --epochs 3 -np 2",
            "Received: train.py --epochs 3 -np 2. Write -np before train.py; or -- bef",
        ),
        ("train.py --seed=3", "Received: train.py --seed=3. Write --seed=3 before"),
        ("-m json.tool --steps 3", "Write --steps before json.tool; or -- before"),
        ("train.ipynb", "A notebook cannot be started as a program. Received: train."),
        ("-np 1 train.py", "size (-np) must be at least 2"),
        ("--json no/such.json train.py", "--json must be a file in a folder that exis"),
    ],
)
def test_what_is_refused_before_anything_starts(verify, arguments, error, refusal):
    message = refusal("verify", *arguments.split())

    assert message.startswith("tfdist verify: error: ")
    assert error in message
    assert verify.calls == []
