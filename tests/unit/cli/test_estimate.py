"""`tfdist estimate`: what it reads, refuses and prints; nothing is run."""

import json

import pytest
from matplotlib.figure import Figure

from tfdist.benchmarks import BenchmarkError
from tfdist.estimate import Link, Measured
from tfdist.estimate.prediction import Calibration
from tfdist.estimate.profile import Memory, Message, Profile
from tfdist_cli import estimate as estimate_module
from tfdist_cli.main import main

MIB = 2**20


def profile(ranks):
    """Return what one rank measured."""
    return Profile(
        ranks=ranks,
        rows=64,
        step_seconds=[0.1] * 20,
        memory=Memory(500 * MIB, 8 * MIB, 16 * MIB, 8 * MIB, 632 * MIB),
        messages=[Message("all_reduce", 8e6, 1.0)],
        steps_of_epoch=100,
        weight_bytes=[2_000_000] * 4,
    )


@pytest.fixture(autouse=True)
def orders(tmp_path, monkeypatch):
    """Be in a folder with a script, and measure nothing; return the orders."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    orders = []

    def measure(given):
        orders.append(given)
        return Measured(
            {size: [profile(size)] for size in {1, max(given.sizes)}},
            {2: Calibration(2, 8_000_000, 1, 1e-3, 10e-3, 6e-3, 50 * MIB, 0, 0)},
            engine=given.engine,
            network=given.network,
            per_host=given.ranks_of_host,
        )

    monkeypatch.setattr(estimate_module, "measure", measure)
    return orders


def test_the_shortest_call(orders, capsys):
    assert main(["estimate", "-np", "1,2", "train.py", "--epochs", "3"]) == 0
    assert orders[0].command == ("train.py", "--epochs", "3")
    assert orders[0].network is None
    assert capsys.readouterr().out == (
        "A prediction of train.py on 1, 2 ranks over TensorFlow, on this machine, "
        "from 20 steps\nof ranks that train alone, and from sums of gradients on this "
        "machine. Each rank has a\nbatch of its own, of 64 rows (weak scaling).\n"
        "\n"
        "| ranks | rows of a rank | update, ms | examples/s | efficiency | "
        "epochs/hour | sent, MB |\n"
        "| :---- | -------------: | ---------: | ---------: | ---------: | "
        "----------: | -------: |\n"
        "| 1     |             64 |        100 |        640 |       1.00 | "
        "        360 |        0 |\n"
        "| 2     |             64 |        110 |      1,164 |       0.91 | "
        "        655 |        8 |\n"
        "\n"
        "| memory of a rank, MiB | program | weights | gradients | optimizer | "
        "activations | buffers | peak |\n"
        "| :-------------------- | ------: | ------: | --------: | --------: | "
        "----------: | ------: | ---: |\n"
        "| 1                     |     500 |       8 |         8 |        16 | "
        "        100 |       0 |  632 |\n"
        "| 2                     |     500 |       8 |         8 |        16 | "
        "        100 |      50 |  682 |\n"
        "\n"
        "| examples/s, MiB of a rank |    2 ranks |\n"
        "| :------------------------ | ---------: |\n"
        "| fp16                      | 1.04 x, +0 |\n"
        "| shard_optimizer           |      -, -8 |\n"
        "| 4 batches an update       | 1.07 x, +8 |\n"
        "\n"
        "On 2 ranks 4 batches an update is 1.07 times as fast.\n"
        "\n"
        "Doubling the ranks gives at least 1.25 times the examples per second as far "
        "as this\nlooks.\n"
    )


def test_a_cluster(orders, capsys):
    words = ["--network", "100Mbit/s", "--latency", "1ms", "--cores", "1"]
    words += ["--per-host", "1", "--collective", "mpi", "--steps", "7"]
    assert main(["estimate", "-np", "64,1", *words, "train.py"]) == 0
    given = orders[0]
    assert given.sizes == (1, 64)
    assert given.network == Link(1e-3, pytest.approx(8e-8))
    assert (given.cores, given.per_host, given.engine) == (1.0, 1, "mpi")
    text = capsys.readouterr().out.replace("\n", " ")
    assert "on hosts with 1 rank each, joined by 0.1 Gbit/s with 1000 us" in text
    assert "Adding ranks stops paying at 1: 2 give only" in text


def test_one_process(orders, capsys):
    assert main(["estimate", "-np", "1", "--network", "10Gbit/s", "train.py"]) == 0
    assert orders[0].network.latency_seconds == 50e-6
    assert capsys.readouterr().out.endswith("|       0 |  632 |\n")


@pytest.mark.parametrize(
    ("rate", "bytes_per_second"),
    [
        ("10Gbit/s", 1.25e9),
        ("100Mbit", 12.5e6),
        ("1.5GB/s", 1.5e9),
        ("64kbit/s", 8e3),
    ],
)
def test_rates(rate, bytes_per_second, orders):
    assert main(["estimate", "--network", rate, "train.py"]) == 0
    seconds = orders[0].network.seconds_per_byte
    assert seconds == pytest.approx(1 / bytes_per_second)


def test_json_and_a_plot(orders, capsys, tmp_path):
    file, plot = tmp_path / "figures.json", tmp_path / "curve.svg"
    words = ["--json", str(file), "--plot", str(plot), "-np", "1,2"]
    assert main(["estimate", *words, "--", "train.py"]) == 0
    assert capsys.readouterr().out.startswith("A prediction of train.py")
    figures = json.loads(file.read_text())
    assert [
        (each["change"], each["ranks"], round(each["examples_per_second"]))
        for each in figures["predictions"]
    ][:2] == [("as it is", 1, 640), ("as it is", 2, 1164)]
    assert figures["calibrations"][0]["seconds"] == 10e-3
    text = plot.read_text()
    assert "examples per second" in text
    assert "Prediction of train.py over TensorFlow" in text


def test_a_plot_has_plain_numbers_and_a_tick_for_each_number_of_ranks(
    orders, monkeypatch
):
    saved = []
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *_, **__: saved.append(figure)
    )
    words = ["-np", "1,2,3000", "--network", "10Gbit/s", "--plot", "curve.svg"]
    assert main(["estimate", *words, "train.py"]) == 0

    (axes,) = saved[0].axes
    axes.figure.draw_without_rendering()
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2", "3,000"]
    assert "1,000,000" in labels
    assert not any("e" in label for label in labels)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-np", "0", "train.py"], "it must be numbers of ranks, from 1 to 65536"),
        (["-np", "1,,2", "train.py"], "Write them with commas, as 1,2,4"),
        (["--network", "10", "train.py"], "it must be a positive rate with a unit"),
        (["--network", "0Gbit/s", "train.py"], "Write it as 10Gbit/s"),
        (["--network", "1.2.3Gbit/s", "train.py"], "Received: 1.2.3Gbit/s"),
        (["--latency", "5", "train.py"], "it must be a time with a unit"),
        (["--latency", "1.2.3us", "train.py"], "Write it as 50us or 1ms"),
        (["--latency", "1ms", "train.py"], "Received: --latency without --network"),
        (["--plot", "curve.foo", "train.py"], "End its name in .png, .svg or .pdf"),
        (["--json", "no/folder.json", "train.py"], "Make the folder no first"),
        (["-np", "9999", "train.py"], "say how fast they are joined"),
        (["missing.py"], "missing.py"),
        (
            ["train.py", "-np", "1,2"],
            "The options of tfdist estimate stand before the ",
        ),
        (["-m", "package.train"], "The module to run does not exist"),
        (["train.sh"], "Only a Python script or module can be measured"),
        ([], "command"),
    ],
)
def test_what_is_refused_before_anything_runs(words, message, orders, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["estimate", *words])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert orders == []


def test_a_script_that_cannot_be_measured(monkeypatch, capsys):
    def fail(orders):
        raise BenchmarkError("It does not run.", 130)

    monkeypatch.setattr(estimate_module, "measure", fail)
    assert main(["estimate", "train.py"]) == 130
    assert capsys.readouterr().err == "tfdist estimate: It does not run.\n"
