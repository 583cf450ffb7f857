"""Programs with a limit of time."""

import sys

import pytest

from tfdist.horovod_build.report import Ended, run_child


def test_a_program_that_ends():
    ended = run_child(
        ["sh", "-c", "echo a; echo b >&2; exit 4"], {}, timeout_seconds=60
    )

    assert ended == Ended(4, "a\nb\n")


@pytest.mark.parametrize("ignore", ["", "trap '' TERM;"])
def test_one_that_does_not_is_ended_with_its_children(ignore, monkeypatch):
    monkeypatch.setattr("tfdist.horovod_build.report._GRACE_SECONDS", 0.2)
    # The output is open for as long as any of them lives.
    program = f"{ignore} echo here; sleep 600 & wait; wait; sleep 600"

    ended = run_child(["bash", "-c", program], {"PATH": "/bin"}, timeout_seconds=0.5)
    assert ended == Ended(None, "here\n")


def test_the_last_lines():
    ended = run_child(
        [sys.executable, "-c", "print('a\\n\\nb\\nc')"], {}, timeout_seconds=60
    )

    assert ended.last_lines(2) == "    b\n    c"
