"""What several commands share."""

from pathlib import Path

import pytest

from tfdist_cli.options import (
    Parser,
    add_command,
    add_program,
    check_json,
    without_dashes,
)


@pytest.fixture
def commands():
    return Parser(prog="tfdist", allow_abbrev=False).add_subparsers()


def test_a_command_has_its_own_words(commands):
    parser = add_command(
        commands,
        "sleep",
        "do nothing",
        description="Two\nlines.",
        epilog="and\nan end",
        usage="tfdist sleep well",
    )

    help = parser.format_help()
    assert help.startswith("usage: tfdist sleep well\n\nTwo\nlines.\n")
    assert help.endswith("\nand\nan end\n")
    assert parser.prog == "tfdist sleep"


def test_a_command_knows_its_parser_and_takes_no_abbreviations(commands, capsys):
    parser = add_command(commands, "sleep", "do nothing", description="Nothing.")
    parser.add_argument("--seconds")

    assert parser.parse_args([]).parser is parser
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(["--sec", "1"])
    assert "tfdist sleep: error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "module", "command"),
    [
        ("train.py --epochs 3", False, ["train.py", "--epochs", "3"]),
        ("-m package.train -m", True, ["package.train", "-m"]),
        ("", False, []),
    ],
)
def test_a_program_ends_the_options(commands, words, module, command):
    parser = add_command(commands, "start", "start", description="Start.")
    add_program(parser, "what to start")

    args = parser.parse_args(words.split())

    assert (args.module, args.command) == (module, command)


def test_dashes_before_a_program_are_not_its_own():
    assert without_dashes(["--", "train.py", "--"]) == ["train.py", "--"]
    assert without_dashes(["train.py", "--"]) == ["train.py", "--"]
    assert without_dashes([]) == []


def test_json_goes_to_a_folder_that_exists(tmp_path):
    for file in (None, tmp_path / "new.json", Path("-")):
        check_json(file)

    with pytest.raises(
        FileNotFoundError,
        match=r"--json must be a file in a folder that exists\. Received: no/such\.json"
        r"\. Make the folder no first\.",
    ):
        check_json(Path("no/such.json"))
