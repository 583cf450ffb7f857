"""How the options of benchmarks are read."""

import argparse

import pytest

from tfdist_cli.bench_options import (
    TO_STDOUT,
    add_benchmark,
    choice,
    list_of,
    positive,
)
from tfdist_cli.parser import Parser


@pytest.fixture
def parser():
    parser = Parser(prog="tfdist", allow_abbrev=False)
    add_benchmark(
        parser.add_subparsers(),
        "speed",
        "how fast it is",
        choice("--by", ("foot", "car"), "how to go"),
        ("--at-most", "N", int, None, "how far"),
    )
    return parser


def test_defaults_and_the_help(parser, capsys):
    args = parser.parse_args(["speed"])

    assert (args.by, args.at_most, args.json) == ("foot", None, None)
    with pytest.raises(SystemExit, match="0"):
        parser.parse_args(["speed", "-h"])
    printed = capsys.readouterr().out
    assert "Measure how fast it is." in printed
    assert "how to go (default: foot)" in printed
    assert "how far\n" in printed


def test_what_is_given_is_read(parser):
    args = parser.parse_args(["speed", "--by", "car", "--at-most", "3", "--json"])

    assert (args.by, args.at_most, args.json) == ("car", 3, TO_STDOUT)


def test_a_name_that_is_none_of_a_choice(parser, capsys):
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(["speed", "--by", "air"])

    assert "There is no such by. Received: 'air'." in capsys.readouterr().err


def test_lists_of_positive_numbers():
    read = list_of(positive("A speed", "1,2"))

    assert read("3,40") == [3, 40]
    with pytest.raises(
        argparse.ArgumentTypeError,
        match="A speed must be a positive whole number. Received: '0'. Write several "
        "as 1,2.",
    ):
        read("3,0")
