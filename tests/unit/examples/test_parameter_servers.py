"""The flags of an example with parameter servers; tests/distributed trains it."""

import subprocess
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parents[3] / "examples"


def test_a_flag_of_the_imported_program_that_would_have_no_effect(forked):
    done = subprocess.run(
        [sys.executable, PROGRAMS / "digits_parameter_server.py", "--strategy=x"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert "Unknown command line flag 'strategy'" in done.stdout + done.stderr
