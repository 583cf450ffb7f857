"""What must start quickly loads no TensorFlow. Asserted by name, never by time."""

import subprocess
import sys

import pytest

HEAVY = (
    "tensorflow",
    "keras",
    "numpy",
    "matplotlib",
    "sklearn",
    "tensorflow_datasets",
)


def heavy_modules_after(code):
    """Return which heavy modules a fresh interpreter holds after running `code`."""
    report = f"import sys; print(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize(
    "module",
    [
        "tfdist",
        "tfdist.cluster",
        "tfdist.cluster.facts",
        "tfdist.horovod_build",
        "tfdist.launch",
        "tfdist.scaling",
        "tfdist_cli.main",
    ],
)
def test_import_loads_nothing_heavy(module):
    assert heavy_modules_after(f"import {module}") == []


def test_asking_for_the_rank_loads_nothing_heavy():
    assert heavy_modules_after("import tfdist; tfdist.rank(), tfdist.size()") == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["run", "--help"],
        ["bench", "--help"],
        ["report", "--help"],
        ["run", "--dry-run", "true"],
        ["config", "check"],
        ["config", "show", "--explain"],
        ["config", "build", "-H", "a,b", "--index", "0"],
        ["env"],
        ["env", "--json"],
    ],
    ids=" ".join,
)
def test_the_command_loads_nothing_heavy(arguments):
    code = f"""
import contextlib
from tfdist_cli.main import main
with contextlib.suppress(SystemExit):
    main({arguments!r})
print()"""

    assert heavy_modules_after(code) == []


def test_import_tfdist_loads_none_of_its_own_packages():
    code = "import sys, tfdist; print(sorted(m for m in sys.modules if 'tfdist.' in m))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


def test_a_strategy_loads_tensorflow():
    assert "tensorflow" in heavy_modules_after("import tfdist; tfdist.strategies")
