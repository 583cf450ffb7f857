"""Rules of CONTRIBUTING.md that no linter knows."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "tfdist").rglob("*.py"), *(ROOT / "cli").rglob("*.py")])
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
NAMES_WITHOUT_A_NOUN = {"utils", "util", "helpers", "common", "misc", "tools"}

# Who may touch os.environ: resolvers read it, the launcher writes it for its children.
# `tfdist horovod` hands it to compilers, and Horovod's options with it.
ENVIRONMENT = (
    "tfdist/cluster/",
    "tfdist/launch/",
    "tfdist/rendezvous/",
    "tfdist/testing/",
    # TensorFlow reads two variables while it connects to servers, as its own strategy
    # sets them.
    "tfdist/compat/parameter_server.py",
    "cli/horovod.py",
    # `tfdist env` shows it.
    "cli/env.py",
)

# Tests that may call time.sleep, and why.
SLEEPERS = {
    "tests/distributed/test_faults.py": "a rank that stays away is what is tested",
}


def name_of(path):
    return str(path.relative_to(ROOT))


def docstring_of(path):
    return ast.get_docstring(ast.parse(path.read_text()))


def imported_or_assigned(statement):
    """Tell whether a top-level statement only re-exports."""
    return isinstance(statement, ast.Import | ast.ImportFrom) or (
        isinstance(statement, ast.Assign)
        and ast.unparse(statement.targets[0]) == "__all__"
    )


def imported_names(path):
    """Return what a file imports: modules, and names as module.name."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def offenders(paths, is_wrong):
    """Return the names of the files about which `is_wrong(path)` is true."""
    return [name_of(path) for path in paths if is_wrong(path)]


def test_every_file_says_what_it_is_for():
    assert not offenders(SOURCES, lambda path: not docstring_of(path))
    assert not offenders(SOURCES, lambda path: path.stem in NAMES_WITHOUT_A_NOUN)


def test_nothing_is_left_to_do():
    note = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")

    assert not offenders(SOURCES, lambda path: note.search(path.read_text()))


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in SOURCES
        if path.name == "__init__.py" and path.parent != ROOT / "tfdist"
    ],
    ids=name_of,
)
def test_init_files_only_re_export(path):
    docstring, *statements = ast.parse(path.read_text()).body
    others = [
        ast.unparse(line) for line in statements if not imported_or_assigned(line)
    ]
    imports = [line for line in statements if not isinstance(line, ast.Assign)]
    listed = [line for line in statements if isinstance(line, ast.Assign)]

    assert isinstance(docstring, ast.Expr)
    assert others == []
    assert len(listed) == bool(imports), "what is re-exported stands in __all__"
    for names in listed:
        assert ast.literal_eval(names.value) == sorted(ast.literal_eval(names.value))


def test_the_environment_is_touched_where_it_belongs():
    """Elsewhere, take `env` as an argument, or ask tfdist.cluster."""
    variable = re.compile(r"os\.environ|os\.getenv|os\.putenv")
    elsewhere = [path for path in SOURCES if not name_of(path).startswith(ENVIRONMENT)]

    assert not offenders(elsewhere, lambda path: variable.search(path.read_text()))


def test_the_inside_does_not_use_the_lazy_front():
    """Through it any layer could reach any other, unseen by the import contracts."""
    facts = ("rank", "size", "local_rank", "local_size", "is_chief")
    front = {"tfdist", *(f"tfdist.{fact}" for fact in facts)}
    library = [path for path in SOURCES if name_of(path).startswith("tfdist/")]

    assert not offenders(library, lambda path: front & imported_names(path))


def test_no_test_sleeps_and_hopes():
    sleepers = {
        name_of(path)
        for path in TESTS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep"
    }

    assert sleepers == set(SLEEPERS)
