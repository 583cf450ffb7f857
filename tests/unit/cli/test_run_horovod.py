"""Horovod's options of `tfdist run`: what they set, and what is refused."""

import pytest

from tfdist_cli.options import Parser
from tfdist_cli.run_options import add_options_of_horovod, horovod_variables


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Return a function that reads a command line, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    parser = Parser(prog="tfdist run", allow_abbrev=False)
    parser.set_defaults(env=[])
    add_options_of_horovod(parser)
    return lambda line: parser.parse_args(line.split())


def test_every_option_arrives(read, tmp_path):
    args = read(
        "--collective horovod --fusion-threshold-mb 2 --cycle-time-ms 0.5 "
        "--cache-capacity 7 --timeline-filename a.json --timeline-mark-cycles "
        "--autotune --autotune-log-file b.csv --log-level INFO "
        "--stall-check-warning-time-seconds 3 --stall-check-shutdown-time-seconds 4"
    )

    assert horovod_variables(args) == {
        "HOROVOD_FUSION_THRESHOLD": str(2 * 2**20),
        "HOROVOD_CYCLE_TIME": "0.5",
        "HOROVOD_CACHE_CAPACITY": "7",
        "HOROVOD_TIMELINE": str(tmp_path / "a.json"),
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": str(tmp_path / "b.csv"),
        "HOROVOD_LOG_LEVEL": "INFO",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "3",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "4",
    }


@pytest.mark.parametrize(
    ("line", "received"),
    [
        ("--cycle-time-ms 0", "--cycle-time-ms"),
        ("--autotune --timeline a", "--autotune, --timeline"),
    ],
)
def test_tuning_needs_a_horovod_job(read, line, received):
    message = (
        "^Horovod's tuning has no effect on TensorFlow's collectives. "
        f"Received: {received}. Add --collective horovod, or leave it out.$"
    )
    with pytest.raises(ValueError, match=message):
        horovod_variables(read(line))


def test_a_variable_is_set_once(read):
    args = read("--collective horovod --cycle-time-ms 2")
    args.env = [("HOROVOD_CYCLE_TIME", "3")]
    message = (
        "^HOROVOD_CYCLE_TIME is set twice. Received: --env HOROVOD_CYCLE_TIME=3, and "
        "an option that sets it to 2.0. Leave one of them out.$"
    )
    with pytest.raises(ValueError, match=message):
        horovod_variables(args)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("--timeline no/a.json", "Received: 'no/a.json'. Make the folder first"),
        ("--timeline .", "it must be a file in a folder that can be written"),
        ("--autotune-log-file no/a", "Received: 'no/a'. Make the folder first"),
    ],
)
def test_what_is_refused_when_it_is_read(read, line, error, capsys):
    with pytest.raises(SystemExit, match="2"):
        read(line)

    assert error in capsys.readouterr().err
