"""Rules of CONTRIBUTING.md that no linter knows: sizes, layers, lazy imports."""

import ast
import functools
import importlib
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "tfdist").rglob("*.py"), *(ROOT / "cli").rglob("*.py")])
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
NAMES_WITHOUT_A_NOUN = {"utils", "util", "helpers", "common", "misc", "tools"}
PRIVATE = ("tensorflow.python", "tf.python", "keras.src")
FILE_LIMIT, FUNCTION_LIMIT, FOLDER_LIMIT = 300, 40, 20

# The code that may use os.environ: resolvers read it, the launcher writes it for its
# children. `tfdist horovod` hands it to compilers, and Horovod's options with it.
ENVIRONMENT = (
    "tfdist/cluster/",
    "tfdist/launching/",
    "tfdist/testing.py",
    # TensorFlow reads two variables while it connects to servers, as its own strategy
    # sets them.
    "tfdist/compat/parameter_server.py",
    # TensorFlow has no function for what a variable chooses on GPUs.
    "tfdist/compat/sparse_updates.py",
    "cli/horovod.py",
    # `tfdist env` shows it.
    "cli/env.py",
)
# Tests that may call time.sleep, and why.
SLEEPERS = {
    "tests/distributed/test_faults.py": "a rank that stays away is what is tested",
    "tests/distributed/test_one_writer.py": "a chief that writes slowly is tested",
    "tests/distributed/test_verdict.py": "a rank that is slow is what is tested",
}


def name_of(path):
    return str(path.relative_to(ROOT))


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


def offenders(paths, is_wrong):
    """Return the names of the files for which `is_wrong(path)` is true."""
    return [name_of(path) for path in paths if is_wrong(path)]


def imported_names(tree):
    """Return the imports of a file: modules, and names as module.name."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_files_functions_and_folders_are_small(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    lines_of_code = importlib.import_module("size_of_the_tree").lines_of_code
    long = []
    for path in [*SOURCES, *EXAMPLES]:
        source, tree = path.read_text(), tree_of(path)
        if lines_of_code(source) > FILE_LIMIT:
            long.append(name_of(path))
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            # Without decorators; in a block, as of a method, it is indented.
            lines = source.splitlines()[node.lineno - 1 : node.end_lineno]
            # Most have few lines of any kind; to read each again takes seconds.
            if (
                len(lines) > FUNCTION_LIMIT
                and lines_of_code("if True:\n " + "\n ".join(lines))
                > FUNCTION_LIMIT + 1
            ):
                long.append(f"{name_of(path)}::{node.name}")
    folders = Counter(name_of(path.parent) for path in SOURCES)

    assert long == [], "Split them by subjects."
    assert [name for name, count in folders.items() if count > FOLDER_LIMIT] == []


def test_every_file_has_a_subject():
    assert offenders(SOURCES, lambda path: not ast.get_docstring(tree_of(path))) == []
    assert offenders(SOURCES, lambda path: path.stem in NAMES_WITHOUT_A_NOUN) == []
    note = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    assert offenders(SOURCES, lambda path: note.search(path.read_text())) == []


def test_init_files_only_re_export():
    for path in SOURCES:
        if path.name != "__init__.py" or path.parent == ROOT / "tfdist":
            continue
        imports, others = [], []
        for line in tree_of(path).body[1:]:
            is_import = isinstance(line, ast.Import | ast.ImportFrom)
            (imports if is_import else others).append(line)

        assert len(others) == bool(imports), name_of(path)
        for line in others:
            assert ast.unparse(line).startswith("__all__ = "), name_of(path)
            names = ast.literal_eval(line.value)
            assert names == sorted(names), name_of(path)


def test_the_environment_is_used_where_it_belongs():
    """Elsewhere, take `env` as an argument, or ask tfdist.cluster."""
    variable = re.compile(r"os\.environ|os\.getenv|os\.putenv")
    elsewhere = [path for path in SOURCES if not name_of(path).startswith(ENVIRONMENT)]

    assert offenders(elsewhere, lambda path: variable.search(path.read_text())) == []


def test_the_library_does_not_use_its_lazy_front():
    """Through it any layer could reach any other, unseen by the import contracts."""
    facts = ("rank", "size", "local_rank", "local_size", "is_chief")
    front = {"tfdist", *(f"tfdist.{fact}" for fact in facts)}
    library = [path for path in SOURCES if name_of(path).startswith("tfdist/")]

    assert offenders(library, lambda path: front & imported_names(tree_of(path))) == []


def test_no_test_sleeps_and_hopes():
    sleepers = {
        name_of(path)
        for path in TESTS
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep"
    }

    assert sleepers == set(SLEEPERS)


def private_uses(tree):
    """Return the private symbols of TensorFlow and Keras that a file names."""
    names = imported_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names.add(ast.unparse(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return [name for name in names if f"{name}.".startswith(PRIVATE_PREFIXES)]


PRIVATE_PREFIXES = tuple(f"{name}." for name in PRIVATE)


def test_private_symbols_are_used_in_compat_alone():
    outside = [
        path
        for path in [*SOURCES, *EXAMPLES]
        if ROOT / "tfdist" / "compat" not in path.parents
    ]

    assert offenders(outside, lambda path: private_uses(tree_of(path))) == []
    # As an import, as a text and as an attribute.
    for line in ("from keras import src", "f('keras.src.ops')", "keras.src.ops"):
        assert private_uses(ast.parse(line)), line


def test_every_folder_with_python_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["setuptools"]["packages"]
    folders = {name_of(path.parent).replace("/", ".") for path in SOURCES}
    folders = {re.sub(r"^cli\b", "tfdist_cli", folder) for folder in folders}

    assert packages == sorted(folders)
    assert offenders(SOURCES, lambda p: not (p.parent / "__init__.py").exists()) == []


def test_every_other_file_of_the_library_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = {
        path
        for package, patterns in project["tool"]["setuptools"]["package-data"].items()
        for pattern in patterns
        for path in (ROOT / package.replace(".", "/")).glob(pattern)
    }
    there = {path for path in (ROOT / "tfdist").rglob("*") if path.is_file()}

    assert listed == {path for path in there if path.suffix not in (".py", ".pyc")}


def run_python(program, folder):
    """Run a program in a process of its own, and return its output."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_import_contract_is_kept():
    # The linter configures logging for the whole interpreter.
    program = (
        "from importlinter.cli import lint_imports\n"
        'raise SystemExit(lint_imports("pyproject.toml", no_cache=True))\n'
    )

    assert "0 broken" in run_python(program, ROOT)


RUN_EVERY_EXAMPLE = """
import doctest, importlib, pkgutil
import tfdist, tfdist_cli

names = [
    module.name
    for package in (tfdist, tfdist_cli)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.name.endswith("__main__")
]
failed = attempted = 0
for name in ["tfdist", *names]:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        # tfdist works without them; `make test` builds Horovod first.
        if error.name in ("horovod", "ray", "torch") or "horovod install" in str(error):
            continue
        raise
    result = doctest.testmod(
        module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    failed, attempted = failed + result.failed, attempted + result.attempted
print("examples failed:", failed, "attempted:", attempted)
"""


def test_every_example_of_a_docstring_runs(forked, tmp_path):
    output = run_python(RUN_EVERY_EXAMPLE, tmp_path)

    assert "examples failed: 0" in output
    assert "attempted: 0" not in output


# The command, too, starts in a fraction of a second; asserted by name, never by time.
LOAD_QUICKLY = """
import contextlib, importlib.util, io, os, sys

heavy = {"tensorflow", "keras", "numpy", "matplotlib", "sklearn", "tensorflow_datasets"}

def check(what):
    assert not heavy & {*sys.modules}, what

import tfdist
assert not [name for name in sys.modules if name.startswith("tfdist.")]
assert (tfdist.rank(), tfdist.size()) == (0, 1)
for name in ("cluster", "horovod_build", "launching", "scaling.report"):
    importlib.import_module(f"tfdist.{name}")
    check(name)
from tfdist_cli.main import main
for command in (
    "--help", "run --help", "bench --help", "report --help", "run --dry-run true",
    "config check", "config show --explain", "config build -H a,b --index 0", "env",
    "env --json",
):
    hidden = io.StringIO()
    with contextlib.redirect_stderr(hidden), contextlib.redirect_stdout(hidden):
        with contextlib.suppress(SystemExit):
            main(command.split())
    check(command)
# A name of no package would be loaded by nothing.
assert importlib.util.find_spec("tensorflow") and importlib.util.find_spec("keras")
"""


def test_imports_are_lazy(tmp_path):
    run_python(LOAD_QUICKLY, tmp_path)
