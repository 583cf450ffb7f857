"""The command as a whole, its parser and its tables."""

import re
import sys
from pathlib import Path

import pytest

from tfdist_cli import main as main_module
from tfdist_cli.main import build_parser, main
from tfdist_cli.options import JSON, TO_STDOUT, Parser, add_options
from tfdist_cli.table import format_table


def error_of(capsys, *words):
    """Return the error with which the command ends."""
    with pytest.raises(SystemExit, match="2"):
        main(words)
    return capsys.readouterr().err


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])

    assert re.fullmatch(r"tfdist \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


def test_without_a_command_there_is_the_help_and_an_error_code(capsys):
    assert main([]) == 2
    out = capsys.readouterr().out
    assert out == build_parser().format_help()
    assert "run a program on several processes" in out


def test_modules_of_other_commands_are_not_imported():
    (commands,) = build_parser(["config"])._subparsers._group_actions

    assert list(commands.choices) == ["config"]


def test_the_words_of_the_command_line_by_default(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tfdist", "config", "build"])
    with pytest.raises(SystemExit, match="2"):
        main()

    assert "tfdist config build: error: There are no addr" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("rnu", "tfdist: error: argument COMMAND: invalid choice: 'rnu'"),
        (
            "--versoin",
            "tfdist: error: there is no option --versoin. Did you mean --ver",
        ),
        ("env --jsno=5", "tfdist env: error: there is no option --jsno. Did you mean"),
        (
            "config",
            "tfdist config: error: the following arguments are required: ACTION",
        ),
        ("config show --js", "tfdist config show: error: there is no option --js."),
        (
            "horovod install --forse",
            "there is no option --forse. Did you mean --force?",
        ),
        (
            "train.py --epochs 3",
            "tfdist: error: The command is missing. Received: train.py in its place. "
            "Write: tfdist run -np 2 train.py --epochs 3\n",
        ),
        ("-np 4 train.py", "Write: tfdist run -np 4 train.py\n"),
        ("run --nproc_per_node 2 x", "no option --nproc_per_node. Did you mean -np?"),
        ("verify --nproc-per-node=2 x", "option --nproc-per-node. Did you mean -np?"),
        ("run --nnodes 2 x", "there is no option --nnodes. Did you mean -H?"),
        # It has no -np.
        ("env --nproc_per_node 2", "there is no option --nproc_per_node.\n"),
        ("run -np 2 --np 2 x", "there is no option --np. Did you mean -np?"),
        (
            "verify --seed",
            "tfdist verify: error: argument --seed: expected one argument",
        ),
    ],
)
def test_a_wrong_command_line(line, message, capsys):
    error = error_of(capsys, *line.split())

    assert message in error
    assert error.endswith(" --help`.\n")


def test_options_are_written_as_their_help_shows_them():
    parser = Parser(prog="x")
    options = {"-np --size N": "how many", "--kind a|b": "of what", "--fast": "hurry"}
    options |= {"--host A,B ...": "where", "--wait SECONDS": "how long"}
    add_options(parser, options | JSON, {"A,B": str.upper}, size=3)

    assert vars(parser.parse_args([])) == {
        **{"size": 3, "kind": None, "fast": False, "host": [], "wait": None},
        "json": None,
    }
    line = "-np 2 --kind b --fast --host c --host d --wait 1.5 --json"
    assert vars(parser.parse_args(line.split())) == {
        **{"size": 2, "kind": "b", "fast": True, "host": ["C", "D"], "wait": 1.5},
        "json": TO_STDOUT,
    }
    assert parser.parse_args(["--json", "file"]).json == Path("file")
    assert "--json [FILE]" in parser.format_help()


@pytest.mark.parametrize("seconds", ["0", "inf", "soon", "1e20"])
def test_a_time_is_positive(seconds, capsys):
    assert (
        "argument --timeout: it must be a positive number of seconds, at most 1e9. "
        f"Received: {seconds}. Leave it out for the default"
    ) in error_of(capsys, "run", "-np", "2", "--timeout", seconds, "x")


def test_ctrl_c_before_the_command_has_begun(monkeypatch, capsys):
    def interrupt(names):
        raise KeyboardInterrupt

    monkeypatch.setattr(main_module, "build_parser", interrupt)

    assert main(["run", "true"]) == 130
    assert capsys.readouterr().err == "tfdist: interrupted\n"


def test_columns_are_as_wide_as_their_widest_cell():
    rows = [["wide cell", "1"], ["b", "22"]]
    assert format_table(["a", "long name"], rows) == (
        "| a         | long name |\n"
        "| :-------- | --------: |\n"
        "| wide cell |         1 |\n"
        "| b         |        22 |"
    )
    assert format_table(["a", "word"], [["22", "x"]], numbers=False) == (
        "| a  | word |\n| :- | :--- |\n| 22 | x    |"
    )
