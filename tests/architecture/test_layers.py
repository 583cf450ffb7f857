"""The arrows of the architecture: every contract in pyproject.toml is kept."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

# In a process of its own: the linter configures logging for the whole interpreter.
CHECK_CONTRACTS = """
from importlinter.cli import lint_imports
raise SystemExit(lint_imports("pyproject.toml", no_cache=True))
"""


def test_every_import_contract_is_kept():
    done = subprocess.run(
        [sys.executable, "-c", CHECK_CONTRACTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout
