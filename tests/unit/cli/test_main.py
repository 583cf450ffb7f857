"""The command as a whole."""

import re
import sys
from types import SimpleNamespace

import pytest

from tfdist_cli import main as main_module
from tfdist_cli.main import build_parser, main


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])

    assert re.fullmatch(r"tfdist \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])

    assert "run a program on several processes" in capsys.readouterr().out


def test_without_a_command_there_is_the_help_and_an_error_code(capsys):
    assert main([]) == 2
    assert capsys.readouterr().out == build_parser().format_help()


def test_an_unknown_command(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["rnu"])

    assert "invalid choice: 'rnu'" in capsys.readouterr().err


def test_an_unknown_option_of_the_command_itself(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--versoin"])

    error = capsys.readouterr().err
    assert error.startswith("tfdist: error: there is no option --versoin. Did you mean")


def test_the_function_of_the_command_gives_the_exit_code(monkeypatch):
    def add_parser(commands):
        parser = commands.add_parser("try")
        parser.add_argument("code", type=int)
        parser.set_defaults(func=lambda args: args.code, parser=parser)

    command = SimpleNamespace(add_parser=add_parser)
    monkeypatch.setattr(main_module, "_COMMANDS", {"try": "its module"})
    monkeypatch.setattr(main_module, "import_module", {"its module": command}.get)

    assert main(["try", "7"]) == 7


def test_nobody_waits_for_the_modules_of_other_commands():
    (commands,) = build_parser(["config"])._subparsers._group_actions

    assert list(commands.choices) == ["config"]


def test_the_words_of_the_command_line_by_default(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tfdist", "config", "build"])
    with pytest.raises(SystemExit, match="2"):
        main()

    assert "tfdist config build: error: There are no addr" in capsys.readouterr().err
