"""The parameter-server example in one process: what it refuses.

That it trains well is in tests/distributed/test_parameter_server_example.py.
"""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[3] / "examples" / "digits_parameter_server.py"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--consistency=none", "value should be one of <async|bounded|sync>"),
        ("--max_staleness=2", "max_staleness is for consistency='bounded'."),
        # It comes with the options of the other program, and would have no effect.
        ("--strategy=all_reduce", "Unknown command line flag 'strategy'"),
        ("--epochs=1", "Start the program with `tfdist run --workers 2 --ps 1`"),
    ],
)
def test_it_says_what_is_wrong(option, message):
    done = subprocess.run(
        [sys.executable, PROGRAM, option], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert message in done.stdout + done.stderr
