"""What the commands of `tfdist config` read and print alike."""

import io
import subprocess
import sys

import pytest

from tfdist.cluster import Cluster, Task
from tfdist_cli.config_text import (
    add_file_argument,
    add_json_argument,
    describe,
    describe_task,
    read_file,
    say,
    tasks_of,
)
from tfdist_cli.options import Parser

FULL = Cluster(
    chief="c:1",
    workers=("a:1", "b:1"),
    ps=("p:1",),
    evaluators=("e:1",),
    task=Task("ps", 0),
)


def test_the_arguments_that_commands_share():
    parser = Parser()
    add_file_argument(parser, default="nothing", holds="hosts")
    add_json_argument(parser, instead_of="the table")

    assert vars(parser.parse_args([])) == {"file": None, "json": False}
    assert vars(parser.parse_args(["-", "--json"])) == {"file": "-", "json": True}
    text = " ".join(parser.format_help().split())
    assert "a file with hosts, or - for the standard input (default: nothing)" in text
    assert "print JSON instead of the table" in text


def test_a_file_is_read(tmp_path):
    (tmp_path / "file").write_bytes(b'{"\xff": "\xc3\xa9"}')

    assert read_file(str(tmp_path / "file")) == '{"\udcff": "é"}'


def test_the_standard_input_is_read(monkeypatch):
    stdin = io.TextIOWrapper(io.BytesIO(b"{\xff}"))
    monkeypatch.setattr(sys, "stdin", stdin)

    assert read_file("-") == "{\udcff}"


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("no/such", "No such file or directory"),
        (".", "Is a directory"),
        ("a\0b", "embedded null byte"),
    ],
)
def test_what_cannot_be_read(file, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = f"^FILE must be a file that can be read. Received: {file} .{why}.. Give"
    with pytest.raises(OSError, match=message):
        read_file(file)


def test_the_error_names_the_option():
    message = (
        "^--hostfile must be a file that can be read. Received: no/such .No such file "
        "or directory.. Give the name of one that holds hosts, or - for"
    )
    with pytest.raises(OSError, match=message):
        read_file("no/such", option="--hostfile", holds="hosts")


def test_any_character_can_be_printed(capsys):
    say("é \ud800")

    assert capsys.readouterr().out == "é \\ud800\n"


def test_a_terminal_that_knows_few_characters(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)

    say("é")
    out.flush()

    assert out.buffer.getvalue() == b"\\xe9\n"


def test_nobody_need_read_to_the_end():
    code = "from tfdist_cli.config_text import say; say('x' * 10**6); say('y')"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.read(1)
        process.stdout.close()
        error = process.stderr.read()

    assert (process.returncode, error) == (0, b"")


def test_a_cluster_in_words():
    assert describe(Cluster()) == "no addresses; this process trains alone"
    assert (
        describe(Cluster(workers=("a:1",))) == "1 worker; this is worker 0, rank 0 of 1"
    )
    assert describe(FULL) == (
        "1 chief, 2 workers, 1 parameter server, 1 evaluator; "
        "this is ps 0, which has no rank"
    )


def test_a_task_in_words():
    cluster = Cluster(chief="c:1", workers=("a:1",), task=Task("worker", 0))

    assert describe_task(cluster) == "worker 0, rank 1 of 2"


def test_the_tasks_of_a_cluster():
    assert [str(task) for task in tasks_of(FULL)] == [
        "chief 0",
        "worker 0",
        "worker 1",
        "ps 0",
        "evaluator 0",
    ]
    assert tasks_of(Cluster()) == []
