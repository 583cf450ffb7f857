"""tests/conftest.py does what the other tests rely on; tried in a pytest of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"


@pytest.fixture
def run_test(tmp_path):
    """Return a function that runs a test under our conftest and gives its report."""
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    requires: commands\n"
    )

    def run(code, *, prepare="", **env):
        (tmp_path / "test_it.py").write_text(
            f"import os\nimport sys\nimport pytest\n{prepare}\n{code}\n"
        )
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-ra"],
            cwd=tmp_path,
            env={**os.environ, "CI": "", **env},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    return run


@pytest.mark.parametrize(
    "change",
    ["os.environ['LEFT'] = '1'", "del os.environ['KEEP']", "os.environ['KEEP'] = '2'"],
)
def test_a_test_that_changes_the_environment_fails(run_test, change):
    report = run_test(f"def test_it():\n    {change}", KEEP="1")

    assert "changed the environment and did not put it back" in report
    assert "1 passed, 1 error" in report


def test_the_next_test_starts_clean_all_the_same(run_test):
    report = run_test(
        "def test_a():\n    os.environ['LEFT'] = '1'\n"
        "def test_b():\n    assert 'LEFT' not in os.environ\n"
    )

    assert "2 passed, 1 error" in report


def test_monkeypatch_may_change_the_environment(run_test):
    report = run_test(
        "def test_it(monkeypatch):\n    monkeypatch.setenv('LEFT', '1')\n"
    )

    assert "1 passed" in report
    assert "error" not in report


def test_no_test_sees_a_cluster(run_test):
    report = run_test(
        "def test_it():\n"
        "    assert 'TF_CONFIG' not in os.environ\n"
        "    assert 'TFDIST_RANK' not in os.environ\n",
        TF_CONFIG="{}",
        TFDIST_RANK="1",
    )

    assert "1 passed" in report


@pytest.mark.parametrize(("ci", "outcome"), [("", "1 skipped"), ("true", "1 error")])
def test_a_missing_command_skips_and_in_ci_fails(run_test, ci, outcome):
    report = run_test(
        "@pytest.mark.requires('taskset')\ndef test_it():\n    pass\n",
        CI=ci,
        PATH="/nonexistent",
    )

    assert "Install the Debian package 'util-linux'." in report
    assert outcome in report


def test_what_is_built_is_looked_for_beside_python(run_test, tmp_path):
    command = tmp_path / "horovodrun"
    command.touch(mode=0o755)
    report = run_test(
        "@pytest.mark.requires('horovodrun')\ndef test_it():\n    pass\n",
        prepare="sys.executable = os.path.abspath('python')",
        CI="true",
        PATH="/nonexistent",
    )
    command.unlink()
    report_without = run_test(
        "@pytest.mark.requires('horovodrun')\ndef test_it():\n    pass\n",
        prepare="sys.executable = os.path.abspath('python')",
    )

    assert "1 passed" in report
    assert "1 skipped" in report_without
    assert "Run: tfdist horovod install" in report_without


def test_a_command_that_is_there_is_used(run_test):
    report = run_test(
        "@pytest.mark.requires('taskset')\ndef test_it():\n    pass\n", CI="true"
    )

    assert "1 passed" in report
