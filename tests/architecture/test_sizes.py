"""Small files, functions and folders; each exception stands here with its reason."""

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = [
    path
    for folder in ("tfdist", "cli")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
SOURCES = [*LIBRARY, *sorted((ROOT / "examples").rglob("*.py"))]
FILE_LIMIT = 300
FUNCTION_LIMIT = 40
FOLDER_LIMIT = 20

# "path" -> reason, and "path::function" -> reason.
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}
# "path" -> reason.
LARGE_FOLDERS: dict[str, str] = {}


def long_files():
    return {
        str(path.relative_to(ROOT))
        for path in SOURCES
        if lines_of_code(path.read_text()) > FILE_LIMIT
    }


def long_functions():
    return {
        f"{path.relative_to(ROOT)}::{function.name}"
        for path in SOURCES
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and function_lines(function) > FUNCTION_LIMIT
    }


def lines_of_code(source):
    """Count the lines that are neither blank, nor comments, nor docstrings."""
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and ast.get_docstring(node, clean=False):
            docstrings.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#")
        for number, line in enumerate(source.splitlines(), 1)
        if number not in docstrings
    )


def function_lines(function):
    """Count signature and body; a docstring may be as long as it needs."""
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        lines -= docstring.end_lineno - docstring.lineno + 1
    return lines


def test_files_are_short():
    assert long_files() == set(LONG_FILES), (
        f"Files have up to {FILE_LIMIT} lines of code. Split the file by subjects, or "
        "list it here with a reason; take out what is listed and no longer long."
    )


def test_functions_are_short():
    assert long_functions() == set(LONG_FUNCTIONS), (
        f"Functions are up to {FUNCTION_LIMIT} lines. Split the function, or list it "
        "here with a reason; take out what is listed and no longer long."
    )


def test_folders_are_small():
    counts = Counter(str(path.relative_to(ROOT).parent) for path in LIBRARY)

    large = {folder for folder, count in counts.items() if count > FOLDER_LIMIT}
    assert large == set(LARGE_FOLDERS), (
        f"Folders have up to {FOLDER_LIMIT} files. Divide the folder by subjects, or "
        "list it here with a reason; take out what is listed and no longer large."
    )


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("def f():\n    return 1\n", 2),
        ('def f():\n    """One.\n\n    Two.\n    """\n    return 1\n', 2),
        ("@decorator\ndef f(\n    a,\n):\n    return a\n", 4),
    ],
)
def test_function_lines_leave_out_docstring_and_decorators(source, lines):
    assert function_lines(ast.parse(source).body[0]) == lines


def test_lines_of_code_leave_out_blank_lines_comments_and_docstrings():
    source = '"""One.\n\nTwo.\n"""\n\n# Why.\nx = 1  # This one counts.\n'

    assert lines_of_code(source) == 1
