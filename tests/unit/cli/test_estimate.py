"""`tfdist estimate`: what it reads, refuses and prints; nothing is run."""

import json

import pytest

from tfdist.estimate import Link, Measured
from tfdist.estimate.prediction import Calibration, Message, Profile
from tfdist_cli import estimate as estimate_module
from tfdist_cli.main import main

MIB = 2**20


def profile(ranks):
    """Return what one rank measured."""
    return Profile(
        ranks=ranks,
        rows=64,
        step_seconds=[0.1] * 20,
        messages=[Message("all_reduce", 8e6, 1.0)],
        gradient_bytes=8 * MIB,
        peak_bytes=632 * MIB,
    )


@pytest.fixture(autouse=True)
def scenarios(folder, monkeypatch):
    """Be in a folder with a script, and measure nothing; return what is asked."""
    (folder / "train.py").touch()
    scenarios = []

    def measure(given):
        scenarios.append(given)
        return Measured(
            profile(1),
            profile(max(given.sizes)),
            Calibration(2, 1e-3, 8_000_000, 9e-3),
            given.network,
            engine=given.engine,
            per_host=given.per_host,
        )

    monkeypatch.setattr(estimate_module, "measure", measure)
    return scenarios


def test_the_shortest_call(scenarios, printed):
    out = printed("estimate", "train.py", "--epochs", "3")
    [given] = scenarios
    assert given.command == ("train.py", "--epochs", "3")
    assert (given.sizes, given.steps, given.per_host) == ((1, 2, 4), 20, 1)
    assert given.network == Link(50e-6, pytest.approx(8e-10))
    assert out == (
        "A prediction of train.py on 1, 2, 4 ranks over TensorFlow, on hosts with 1 "
        "rank each,\njoined by 10 Gbit/s with 50 us, from 20 steps of ranks that train "
        "alone, and from sums\nof gradients on this machine. Each rank has a batch of "
        "its own, of 64 rows (weak\nscaling).\n"
        "\n"
        "| ranks | rows of a rank | update, ms | examples/s | efficiency | sent, MB | "
        "memory, MiB |\n"
        "| :---- | -------------: | ---------: | ---------: | ---------: | -------: | "
        "----------: |\n"
        "| 1     |             64 |        100 |        640 |       1.00 |        0 | "
        "        632 |\n"
        "| 2     |             64 |        108 |      1,185 |       0.93 |        8 | "
        "        640 |\n"
        "| 4     |             64 |        113 |      2,267 |       0.89 |       12 | "
        "        640 |\n"
    )


def test_a_cluster(scenarios, printed):
    words = ["--network", "100Mbit/s", "--latency", "0.001", "--per-host", "1"]
    words += ["--collective", "mpi", "--steps", "7"]
    text = printed("estimate", "-np", "64,1", *words, "train.py").replace("\n", " ")
    [given] = scenarios
    assert given.sizes == (1, 64)
    assert given.network == Link(1e-3, pytest.approx(8e-8))
    assert (given.steps, given.engine) == (7, "mpi")
    assert "over MPI, on hosts with 1 rank each, joined by 0.1 Gbit/s with 1000" in text


@pytest.mark.parametrize(
    ("rate", "bytes_per_second"),
    [("100Mbit", 12.5e6), ("1.5GB/s", 1.5e9), ("64kbit/s", 8e3)],
)
def test_rates(rate, bytes_per_second, scenarios):
    assert main(["estimate", "--network", rate, "train.py"]) == 0
    seconds = scenarios[0].network.seconds_per_byte
    assert seconds == pytest.approx(1 / bytes_per_second)


def test_json(printed, folder):
    words = ["--json", "figures.json", "-np", "1,2", "--per-host", "1"]
    assert printed("estimate", *words, "--", "train.py").startswith("A prediction of t")
    figures = json.loads((folder / "figures.json").read_text())
    rates = {p["ranks"]: p["examples_per_second"] for p in figures["predictions"]}
    assert rates == {1: pytest.approx(640), 2: pytest.approx(128 / 0.108)}
    assert figures["calibration"]["seconds"] == 9e-3
    assert figures["largest"]["step_seconds"] == [0.1] * 20


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-np 0 train.py", "it must be numbers of ranks, from 1 to 65536"),
        ("-np 1,,2 train.py", "Write them with commas, as 1,2,4"),
        ("--network 10 train.py", "it must be a positive rate with a unit"),
        ("--network 0Gbit/s train.py", "Write it as 10Gbit/s"),
        ("--network 1.2.3Gbit/s train.py", "Received: 1.2.3Gbit/s"),
        ("--json no/folder.json train.py", "Make the folder no first"),
        ("--per-host 0 train.py", "per_host (--per-host) must be from 1"),
        ("train.py -np 1,2", "The options of tfdist estimate stand before the "),
        ("train.sh", "Only a Python script or module can be measured"),
    ],
)
def test_what_is_refused_before_anything_runs(line, message, scenarios, refusal):
    assert message in refusal("estimate", *line.split())
    assert scenarios == []
