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


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_every_file_says_what_it_is_for(path):
    assert ast.get_docstring(ast.parse(path.read_text()))
    assert path.stem not in NAMES_WITHOUT_A_NOUN


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_nothing_is_left_to_do(path):
    assert re.findall(r"\b(TODO|FIXME|XXX|HACK)\b", path.read_text()) == []


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


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_the_environment_is_touched_where_it_belongs(path):
    if not name_of(path).startswith(ENVIRONMENT):
        found = re.findall(r"os\.environ|os\.getenv|os\.putenv", path.read_text())

        assert found == [], "take `env` as an argument, or ask tfdist.cluster"


@pytest.mark.parametrize(
    "path",
    [path for path in SOURCES if name_of(path).startswith("tfdist/")],
    ids=name_of,
)
def test_the_inside_does_not_use_the_lazy_front(path):
    """Through it any layer could reach any other, unseen by the import contracts."""
    facts = ("rank", "size", "local_rank", "local_size", "is_chief")
    front = {"tfdist", *(f"tfdist.{fact}" for fact in facts)}

    assert front.isdisjoint(imported_names(path))


def test_no_test_sleeps_and_hopes():
    sleepers = {
        name_of(path)
        for path in TESTS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep"
    }

    assert sleepers == set(SLEEPERS)
