"""Keras has inside what tfdist needs there, and nothing else of it is replaced."""

import ast
import json
import re
import subprocess
import sys
import textwrap
import types
import warnings
from pathlib import Path

import keras
import pytest

from tfdist.compat.keras import versions

FOLDER = Path(versions.__file__).parent
SOURCES = [path for path in FOLDER.glob("*.py") if path.name != "versions.py"]

# What Keras is before and after the patches: (owner, name) -> value.
COMPARE = """
    import importlib
    import inspect
    import json
    import pkgutil
    import sys

    import tfdist.compat.keras as compat
    from tfdist.compat.keras import versions

    for module in pkgutil.iter_modules(compat.__path__, compat.__name__ + "."):
        importlib.import_module(module.name)


    def is_keras(name):
        return name.split(".")[0] == "keras"


    def owners():
        for module in [m for name, m in sys.modules.items() if is_keras(name)]:
            yield module
            for value in list(vars(module).values()):
                if isinstance(value, type) and is_keras(value.__module__):
                    yield value


    def snapshot():
        return {
            (owner, name): value
            for owner in {id(owner): owner for owner in owners()}.values()
            for name, value in vars(owner).items()
        }


    def takes_what_keras_gives(ours, theirs):
        mine, keras_s = named(ours), named(theirs)
        getter = getattr(ours, "fget", ours)
        passes_on = len(mine) < len(inspect.signature(getter).parameters)
        return mine == keras_s[: len(mine)] if passes_on else mine == keras_s


    def named(function):
        function = getattr(function, "fget", function)  # A property is its getter.
        found = inspect.signature(function).parameters.values()
        return [repr(p.default) for p in found if p.kind not in versions._VARIADIC]


    def table():
        for module, name, _ in versions._entries():
            owner, _, attribute = name.rpartition(".")
            yield pkgutil.resolve_name(f"{module}:{owner}"), attribute


    before = snapshot()
    compat.install(is_alone=True)
    compat.install(is_alone=False)
    after = snapshot()
    changed = [key for key, value in after.items() if before.get(key) is not value]
    unknown = [key for key in changed if key not in set(table())]
    unfit = [
        key
        for key in changed
        if not takes_what_keras_gives(after[key], before.get(key) or getattr(*key))
    ]
    print(json.dumps([len(changed), str(unknown), str(unfit)]))
    """


def run(program):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def compared():
    done = run(COMPARE)

    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def inside(monkeypatch):
    """Return a module that stands for the inside of Keras."""
    module = types.ModuleType("inside")
    module.function = lambda grads, variables, norm=None: None
    monkeypatch.setitem(sys.modules, "inside", module)
    return module


def need(monkeypatch, **symbols):
    monkeypatch.setattr(versions, "SYMBOLS", {"inside": symbols})


def test_whatever_is_replaced_stands_in_the_table(compared):
    count, unknown, _ = compared

    assert count > 10
    assert unknown == "[]"


def test_what_replaces_takes_what_keras_gives(compared):
    assert compared[2] == "[]"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_whatever_is_imported_stands_in_the_table(path):
    known = {
        f"{module}.{name}"
        for module, symbols in versions.SYMBOLS.items()
        for name in symbols
    }
    imported = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("keras.src")
        for alias in node.names
    }

    unknown = {
        one for one in imported if not any(f"{k}.".startswith(f"{one}.") for k in known)
    }
    assert unknown == set()


def test_the_table_holds_nothing_that_is_not_needed():
    sources = "\n".join(path.read_text() for path in SOURCES)

    for symbols in versions.SYMBOLS.values():
        for name in symbols:
            assert re.search(rf"\b{name.split('.')[-1]}\b", sources), name


def test_keras_may_have_more_parameters_that_can_be_left_out(inside, monkeypatch):
    need(monkeypatch, function="grads variables", __name__="")

    assert versions.check_symbols() is None


@pytest.mark.parametrize(
    ("symbols", "problem"),
    [
        ({"clip": ""}, "inside.clip, which is missing"),
        ({"Optimizer.apply": "self"}, "inside.Optimizer.apply, which is missing"),
        (
            {"function": "gradients variables"},
            "inside.function(grads, variables, norm=None) instead of "
            "(gradients, variables)",
        ),
        (
            {"function": "grads"},
            "inside.function(grads, variables, norm=None) instead of (grads)",
        ),
        ({"one": "", "other": ""}, "inside.one, which is missing; inside.other"),
    ],
)
def test_another_inside_is_refused(inside, monkeypatch, symbols, problem):
    monkeypatch.setattr(keras, "__version__", "3.99.1")
    need(monkeypatch, **symbols)

    with pytest.raises(
        ImportError,
        match=r"Keras 3\.99\.1 lacks or has changed what tfdist replaces\. "
        rf"Received: {re.escape(problem)}.* Install .*: "
        r"pip install 'keras>=3\.8,<3\.\d+'\.",
    ):
        versions.check_symbols()


def test_no_import_fails_before_the_check():
    done = run("""
        from keras.src.callbacks import callback_list
        from keras.src.losses import loss
        from keras.src.optimizers import loss_scale_optimizer

        del callback_list.CallbackList
        del loss.reduce_weighted_values
        del loss_scale_optimizer.LossScaleOptimizer
        import tfdist.strategies
        """)

    message = done.stderr.splitlines()[-1]
    assert message.startswith("ImportError: Keras ")
    for name in ("CallbackList", "reduce_weighted_values", "LossScaleOptimizer"):
        assert re.search(rf"keras\.src\.\S+\.{name}\b", message)


@pytest.mark.parametrize("version", ["3.8.0", "3.10.1", "3.15.9"])
def test_a_tested_version_is_no_news(monkeypatch, version):
    monkeypatch.setattr(keras, "__version__", version)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert versions.warn_if_untested() is None


@pytest.mark.parametrize("version", ["3.7.0", "3.16.0", "3.16.0.dev2026", "4.0.0"])
def test_another_version_is_a_warning_with_what_was_checked(
    inside, monkeypatch, version
):
    monkeypatch.setattr(keras, "__version__", version)
    need(monkeypatch, function="", other="")

    with pytest.warns(
        RuntimeWarning,
        match=rf"not tested with this version of Keras\. Received: Keras {version}; "
        r"tested are 3\.8 to 3\.15\. These 2 symbols were checked and found as "
        r"expected: function, other\. Run `tfdist verify` on",
    ):
        versions.warn_if_untested()


def test_there_is_one_warning_in_a_process():
    done = run("""
        import warnings

        import keras
        from tfdist.compat.keras import install

        keras.__version__ = "3.99.0"
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for is_alone in (True, True, False):
                install(is_alone=is_alone)
        print([str(one.message)[:39] for one in seen])
        """)

    assert done.returncode == 0, done.stderr
    assert "['tfdist was not tested with this version']" in done.stdout
