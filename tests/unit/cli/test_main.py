"""The command as a whole, and its tables."""

import re
import sys
from types import SimpleNamespace

import pytest

from tfdist_cli.main import build_parser, main
from tfdist_cli.table import format_table


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])

    assert re.fullmatch(r"tfdist \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


def test_without_a_command_there_is_the_help_and_an_error_code(capsys):
    assert main([]) == 2
    out = capsys.readouterr().out
    assert out == build_parser().format_help()
    assert "run a program on several processes" in out
    assert "run a program on several" not in build_parser(["config"]).format_help()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("rnu", "tfdist: error: argument COMMAND: invalid choice: 'rnu'"),
        (
            "--versoin",
            "tfdist: error: there is no option --versoin. Did you mean --ver",
        ),
        ("env --jsno=5", "tfdist env: error: there is no option --jsno. Did you mean"),
        ("config show --js", "tfdist config show: error: there is no option --js."),
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
        *(
            (
                f"run -np 2 --timeout {seconds} x",
                "--timeout: it must be a positive number of seconds, at most 1e9. "
                f"Received: {seconds}. Leave it out for the default",
            )
            for seconds in ("0", "soon", "1e20")
        ),
    ],
)
def test_a_wrong_command_line(line, message, refusal):
    error = refusal(*line.split())

    assert message in error
    assert error.endswith(" --help`.\n")


def test_ctrl_c_before_the_command_has_begun(monkeypatch, capsys):
    def interrupt(commands):
        raise KeyboardInterrupt

    module = SimpleNamespace(add_parser=interrupt)
    monkeypatch.setitem(sys.modules, "tfdist_cli.run", module)

    assert main(["run", "true"]) == 130
    assert capsys.readouterr().err == "tfdist: interrupted\n"


def test_columns_of_words_are_as_wide_as_their_widest_cell():
    assert format_table(["a", "word"], [["22", "x"]], numbers=False) == (
        "| a  | word |\n| :- | :--- |\n| 22 | x    |"
    )
