"""tests/conftest.py does its work for the other tests; tried in a pytest of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"


@pytest.fixture
def run_tests(tmp_path):
    """Return a function that runs tests under our conftest and gives their report."""
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    requires: commands\n    slow: long\n"
    )

    def run(code, **env):
        (tmp_path / "test_it.py").write_text(
            f"import os\nimport sys\nimport pytest\n{code}\n"
        )
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-ra"],
            cwd=tmp_path,
            # Plugins are of no use here, and take longer to import than the tests.
            env={
                **os.environ,
                "CI": "",
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                **env,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    return run


def test_a_test_that_changes_the_environment_fails_alone(run_tests):
    report = run_tests(
        "def test_a():\n    os.environ['LEFT'] = '1'\n"
        "def test_b():\n    assert 'LEFT' not in os.environ\n"
        "def test_c():\n    del os.environ['KEEP']\n"
        "def test_d():\n    os.environ['KEEP'] = '2'\n"
        "def test_e(monkeypatch):\n    monkeypatch.setenv('LEFT', '1')\n"
        "def test_f():\n"
        "    assert 'TF_CONFIG' not in os.environ\n"
        "    assert 'TFDIST_RANK' not in os.environ\n",
        KEEP="1",
        TF_CONFIG="{}",
        TFDIST_RANK="1",
    )

    assert "6 passed, 3 errors" in report
    assert report.count("changed the environment and did not put it back") >= 3
    assert all(f"ERROR test_it.py::test_{name}" in report for name in "acd")


@pytest.mark.parametrize(
    ("ci", "path", "outcome"),
    [
        ("", "/nonexistent", "1 skipped"),
        ("true", "/nonexistent", "1 error"),
        ("true", os.environ["PATH"], "1 passed"),
    ],
)
def test_a_missing_command_skips_and_in_ci_fails(run_tests, ci, path, outcome):
    report = run_tests(
        "@pytest.mark.requires('taskset')\ndef test_it():\n    pass\n", CI=ci, PATH=path
    )

    assert outcome in report
    assert ("Install the Debian package 'util-linux'." in report) == ("/no" in path)


@pytest.mark.parametrize("is_built", [True, False])
def test_horovodrun_is_looked_for_next_to_python(run_tests, tmp_path, is_built):
    if is_built:
        (tmp_path / "horovodrun").touch(mode=0o755)
    report = run_tests(
        "sys.executable = os.path.abspath('python')\n"
        "@pytest.mark.requires('horovodrun')\ndef test_it():\n    pass\n",
        PATH="/nonexistent",
    )

    assert ("1 passed" if is_built else "1 skipped") in report
    assert ("Run: tfdist horovod install" in report) is not is_built


def test_each_slow_test_is_of_one_part(run_tests):
    code = "".join(f"@pytest.mark.slow\ndef test_{name}(): pass\n" for name in "abcdef")
    code = f"def test_quick(): pass\n{code}"

    reports = [run_tests(code, TFDIST_SLOW_PART=f"{part}/3") for part in (1, 2, 3)]

    # The tests of a file run together.
    ends = sorted(report.splitlines()[-1].split(" in ")[0] for report in reports)
    assert [end.strip("= ") for end in ends] == [
        "1 passed, 6 deselected",
        "1 passed, 6 deselected",
        "7 passed",
    ]
