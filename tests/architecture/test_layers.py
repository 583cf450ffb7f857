"""The arrows of the architecture: every contract in pyproject.toml is kept."""

import io
from contextlib import redirect_stdout
from pathlib import Path

from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[2]


def test_every_import_contract_is_kept(monkeypatch):
    monkeypatch.chdir(ROOT)
    report = io.StringIO()

    with redirect_stdout(report):
        exit_code = lint_imports("pyproject.toml", no_cache=True)

    assert exit_code == 0, report.getvalue()
    assert "0 broken" in report.getvalue()
