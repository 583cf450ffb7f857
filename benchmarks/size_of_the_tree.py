"""The size of the project: files, lines of code and words."""

import ast
from pathlib import Path

from script import run_script

from tfdist_cli.table import format_table

_ROOT = Path(__file__).parents[1]
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def lines_of_code(source):
    """Count lines that are not blank, a comment, or part of a docstring."""
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            docstrings.update(range(docstring.lineno, docstring.end_lineno + 1))
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#")
        for number, line in enumerate(source.splitlines(), 1)
        if number not in docstrings
    )


def count(args):
    """Count the library, the command, the tests and the documentation."""
    figures = {}
    for folder in ("tfdist", "cli", "tests"):
        sources = [file.read_text() for file in (_ROOT / folder).rglob("*.py")]
        figures[folder] = {
            "files": len(sources),
            "code_lines": sum(map(lines_of_code, sources)),
            "lines": sum(len(source.splitlines()) for source in sources),
        }
    figures["tfdist and cli"] = {
        key: figures["tfdist"][key] + value for key, value in figures["cli"].items()
    }
    # Pages of docs/api come from docstrings.
    pages = [file.read_text() for file in (_ROOT / "docs").glob("*.md")]
    figures["docs"] = {
        "files": len(pages),
        "lines": sum(len(page.splitlines()) for page in pages),
        "words": sum(len(page.split()) for page in pages),
    }
    columns = ("files", "code_lines", "lines", "words")
    rows = [
        [folder, *(f"{sizes[key]:,}" if key in sizes else "" for key in columns)]
        for folder, sizes in figures.items()
    ]
    return figures, format_table(
        ["folder", "files", "lines of code", "all lines", "words"], rows
    )


if __name__ == "__main__":
    run_script(__doc__, [], count)
