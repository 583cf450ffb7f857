"""Errors on the command line."""

import pytest

from tfdist_cli.options import Parser


@pytest.fixture
def parser():
    parser = Parser(prog="prog", allow_abbrev=False)
    parser.add_argument("--timeout")
    parser.add_argument("-np")
    return parser


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--timeot", "there is no option --timeot. Did you mean --timeout?"),
        ("--timeot=5", "there is no option --timeot. Did you mean --timeout?"),
        ("--np", "there is no option --np. Did you mean -np?"),
        ("--quiet", "there is no option --quiet."),
    ],
)
def test_an_unknown_option(parser, option, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        parser.refuse(option)

    assert capsys.readouterr().err == f"prog: error: {message}\nSee `prog --help`.\n"


def test_errors_are_short(parser, capsys):
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(["--timeout"])

    assert capsys.readouterr().err.splitlines() == [
        "prog: error: argument --timeout: expected one argument",
        "See `prog --help`.",
    ]
