"""Call of the command by tables of malformed inputs, and the rules of its errors."""

import pytest

from tfdist_cli.main import main

# More would bury what is wrong.
MOST_CHARACTERS = 1500
# Where the parser of options has words of its own for what it has received.
WORDS_OF_ARGPARSE = (
    "invalid int value: ",
    "invalid float value: ",
    "invalid choice: ",
    "ignored explicit argument ",
    "expected one argument",
    "not allowed with argument ",
    "are required: ",
    "there is no option ",
)


@pytest.fixture
def refusal(monkeypatch, capsys):
    """Return a function that calls `tfdist` with what is wrong and returns its error.

    It makes sure that the error is a single one, in three parts, without a traceback
    and with exit code 2, and that nothing else was printed.
    """

    def call(*words, **variables):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                if value is None:
                    patch.delenv(name, raising=False)
                else:
                    patch.setenv(name, value)
            with pytest.raises(SystemExit) as raised:
                main(words)
        out, error = capsys.readouterr()
        command, _, message = error.partition(": error: ")
        message, _, end = message.rpartition("\nSee `")

        assert raised.value.code == 2
        assert out == ""
        assert command == end.removesuffix(" --help`.\n")
        assert "Traceback" not in error
        assert len(message) < MOST_CHARACTERS
        if not any(words in message for words in WORDS_OF_ARGPARSE):
            assert_three_parts(message)
        return message

    return call


def assert_three_parts(message):
    """Make sure that a message says what is wrong, what was received, what to do."""
    problem, received, rest = message.partition("Received:")

    assert received, message
    assert problem.rstrip().endswith("."), message
    # The advice stands in a line of its own below an excerpt, or behind a sentence.
    assert "\n" in rest or ". " in rest, message
