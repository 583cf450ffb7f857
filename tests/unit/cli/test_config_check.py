"""`tfdist config check`: what it prints, and its exit codes."""

import io
import json
import sys

import pytest

from tfdist_cli import config
from tfdist_cli.main import main

RIGHT = {
    "cluster": {"worker": ["a:2222", "b:2222"]},
    "task": {"type": "worker", "index": 1},
}


@pytest.fixture
def check(tmp_path, capsys):
    """Return what checks a configuration in a file: exit code and output."""

    def check(config, *options):
        text = config if isinstance(config, str) else json.dumps(config)
        (tmp_path / "file").write_text(text)
        code = main(["config", "check", str(tmp_path / "file"), *options])
        return code, capsys.readouterr().out

    return check


def test_a_right_one(check):
    assert check(RIGHT) == (
        0,
        "TF_CONFIG is right: 2 workers; this is worker 1, rank 1 of 2.\n",
    )


def test_an_empty_object(check):
    assert check("{}") == (
        0,
        "TF_CONFIG is right: no addresses; this process trains alone.\n",
    )


def test_all_errors(check):
    wrong = {**RIGHT, "cluster": {"worker": ["a", "b:0"]}}

    assert check(wrong) == (
        1,
        "error: TF_CONFIG cluster.worker[0] has no port. Received: 'a'.\n"
        "  Why: The others could not connect to this process, and would wait.\n"
        '  Fix: Write it as "host:port", for example "node1:2222".\n'
        "error: TF_CONFIG cluster.worker[1] must end in a port from 1 to 65535. "
        "Received: 'b:0'.\n"
        "  Why: The others could not connect to this process, and would wait.\n"
        "  Fix: Use a port that is free on that host, for example 2222.\n"
        "TF_CONFIG has 2 errors.\n",
    )


def test_a_syntax_error_is_shown_with_its_line(check):
    assert check('{"cluster": }') == (
        1,
        "error: TF_CONFIG is not valid JSON: Expecting value: line 1 column 13 (char "
        "12). Received: '{\"cluster\": }'.\n"
        "  Why: No process could read it, and each would end at once.\n"
        "  Fix: Write it with json.dumps(), as {...} with names in double quotes.\n"
        "TF_CONFIG has 1 error.\n",
    )


def test_warnings_alone(check):
    code, out = check({**RIGHT, "cluster": {"worker": ["a:2222", "b:40000"]}})

    assert code == 0
    assert out.startswith("warning: TF_CONFIG cluster.worker[1] has a port from the")
    assert out.endswith(
        "\nTF_CONFIG has no error and 1 warning: 2 workers; this is worker 1, rank 1 "
        "of 2.\n"
    )


def test_names_are_looked_up_when_asked_for(check, monkeypatch):
    def look_up(host):
        raise OSError(f"nobody knows {host}")

    monkeypatch.setattr(config, "look_up", look_up)

    code, out = check(RIGHT, "--resolve")
    assert code == 0
    assert out.count("Received: 'a' (nobody knows a).\n") == 1
    assert "TF_CONFIG has no error and 2 warnings: " in out

    code, out = check({**RIGHT, "rpc_layer": 0}, "--resolve")
    assert code == 1
    assert out.endswith("\nTF_CONFIG has 1 error and 2 warnings.\n")


def test_json(check):
    code, out = check({**RIGHT, "x": 0}, "--json")

    assert code == 1
    assert json.loads(out) == {
        "errors": 1,
        "warnings": 0,
        "findings": [
            {
                "place": "TF_CONFIG",
                "problem": 'has an unknown key "x".',
                "received": "cluster, task, x",
                "fix": "Leave it out, or use one of: cluster, task, rpc_layer, "
                "environment, job, sparseCluster.",
                "effect": "not used",
                "severity": "error",
                "why": "It would be ignored.",
            }
        ],
    }
    assert check(RIGHT, "--json")[0] == 0


def test_a_long_value_is_cut(check):
    code, out = check({**RIGHT, "cluster": {"worker": list(range(10_000))}})

    assert code == 1
    assert "Received: [0, 1, 2, " in out
    assert "...." in out
    assert len(out) < 1000


def test_the_variable_is_checked_by_default(monkeypatch, capsys):
    monkeypatch.setenv("TF_CONFIG", "{")

    assert main(["config", "check"]) == 1
    assert "TF_CONFIG is not valid JSON" in capsys.readouterr().out


def test_the_standard_input(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"\xff": 0}')))

    assert main(["config", "check", "-"]) == 1
    assert 'has an unknown key "\\udcff"' in capsys.readouterr().out


def test_there_must_be_something_to_check(monkeypatch, capsys):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(SystemExit, match="2"):
        main(["config", "check"])

    assert capsys.readouterr().err.startswith(
        "tfdist config check: error: There is no TF_CONFIG to check. Received: no FILE"
    )


def test_a_file_that_is_not_there(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["config", "check", "no/such/file"])

    assert "error: FILE must be a file that can be read." in capsys.readouterr().err
