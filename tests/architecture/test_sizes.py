"""Files and functions stay small; each exception stands here with its reason."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for folder in ("tfdist", "cli", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
FILE_LIMIT = 250
FUNCTION_LIMIT = 40

# "path" -> reason, and "path::function" -> reason.
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}


def long_files():
    return {
        str(path.relative_to(ROOT))
        for path in SOURCES
        if len(path.read_text().splitlines()) > FILE_LIMIT
    }


def long_functions():
    return {
        f"{path.relative_to(ROOT)}::{function.name}"
        for path in SOURCES
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and lines_of_code(function) > FUNCTION_LIMIT
    }


def lines_of_code(function):
    """Count signature and body; a docstring may be as long as it needs."""
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        lines -= docstring.end_lineno - docstring.lineno + 1
    return lines


def test_files_are_short():
    assert long_files() == set(LONG_FILES), (
        f"Files are up to {FILE_LIMIT} lines. Split the file by ideas, or list it here "
        "with a reason; take out what is listed and no longer long."
    )


def test_functions_are_short():
    assert long_functions() == set(LONG_FUNCTIONS), (
        f"Functions are up to {FUNCTION_LIMIT} lines. Split the function, or list it "
        "here with a reason; take out what is listed and no longer long."
    )


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("def f():\n    return 1\n", 2),
        ('def f():\n    """One.\n\n    Two.\n    """\n    return 1\n', 2),
        ("@decorator\ndef f(\n    a,\n):\n    return a\n", 4),
    ],
)
def test_lines_of_code_leave_out_docstring_and_decorators(source, lines):
    assert lines_of_code(ast.parse(source).body[0]) == lines
