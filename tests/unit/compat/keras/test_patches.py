"""Every symbol of Keras that tfdist needs is there, and only those are replaced."""

import ast
import inspect
import pkgutil
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import keras
import pytest

from tfdist.compat.keras import versions
from tfdist.compat.keras.hooks import KerasHooks
from tfdist.compat.keras.patches import PATCHES, PATCHES_OF_OTHER_RANKS
from tfdist.strategies import AllReduceStrategy

FOLDER = Path(versions.__file__).parent
SOURCES = {
    path.name: path.read_text()
    for path in FOLDER.glob("*.py")
    if path.name not in ("versions.py", "patches.py")
}
REPLACED = PATCHES | PATCHES_OF_OTHER_RANKS
KNOWN = [symbol.replace(":", ".") for symbol in (*versions.SYMBOLS, *REPLACED)]


def run(program):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout, done.stderr


def test_every_private_symbol_that_is_imported_is_checked():
    imported = {
        f"{node.module}.{alias.name}"
        for source in SOURCES.values()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("keras.src")
        for alias in node.names
    }

    unknown = [o for o in imported if not any(f"{k}.".startswith(o) for k in KNOWN)]
    assert len(imported) > 5
    assert unknown == []


def test_every_symbol_that_is_checked_is_used():
    sources = "\n".join(SOURCES.values())

    names = [re.split(r"[.:]", symbol)[-1] for symbol in versions.SYMBOLS]
    assert [n for n in names if not re.search(rf"\b{n}\b", sources)] == []


@pytest.mark.parametrize("symbol", REPLACED)
def test_a_replacement_takes_the_arguments_of_keras_and_their_defaults(symbol):
    replaced = pkgutil.resolve_name(symbol)
    _, *ours = named_parameters(REPLACED[symbol])
    theirs = named_parameters(getattr(replaced, "fget", replaced))

    assert len(ours) > 0
    if not isinstance(replaced, property):
        assert ours == theirs[: len(ours)]


def named_parameters(function):
    """Return the name and the default of each parameter but `*args` and `**kwargs`."""
    found = inspect.signature(function).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [(p.name, repr(p.default)) for p in found if p.kind not in variadic]


def function(grads, variables, norm=None):
    """A function of a library."""


def test_a_function_may_have_further_parameters_with_a_default():
    assert versions.check({f"{__name__}:function": "grads variables"}) is None
    assert versions.check({f"{__name__}:function": "grads *"}) is None
    assert versions.check({f"{__name__}:function": ""}) is None


@pytest.mark.parametrize(
    ("symbols", "problem"),
    [
        ({f"{__name__}:Missing.apply": "self"}, "Missing.apply, which is missing"),
        (
            {f"{__name__}:function": "gradients variables"},
            "function(grads, variables, norm=None) instead of (gradients, variables)",
        ),
        (
            {f"{__name__}:function": "grads", "other:one": ""},
            "function(grads, variables, norm=None) instead of (grads); other.one, "
            "which is missing",
        ),
    ],
)
def test_another_keras_is_refused(symbols, problem):
    with pytest.raises(
        ImportError,
        match=rf"Keras {re.escape(keras.__version__)} lacks or has changed what tfdist "
        rf"replaces\. Received: .*{re.escape(problem)}\. Install a version that tfdist "
        r"was tested with: pip install 'keras>=3\.8,<3\.\d+'\.",
    ):
        versions.check(symbols)


def test_no_import_fails_before_the_check(forked):
    _, _, stderr = run("""
        import sys
        from keras.src.callbacks import progbar_logger
        from keras.src.losses import loss

        # What a new process has not imported yet.
        for name in [*sys.modules]:
            if name.split(".")[0] == "tfdist":
                del sys.modules[name]
        del progbar_logger.ProgbarLogger._update_progbar
        del loss.apply_mask
        import tfdist.strategies
        """)

    message = stderr.splitlines()[-1]
    assert message.startswith("ImportError: Keras ")
    for name in (r"ProgbarLogger\._update_progbar", "apply_mask"):
        assert re.search(rf"keras\.src\.\S+\.{name}\b", message)


@pytest.mark.parametrize(
    ("version", "is_tested"),
    [("3.8.0", True), ("3.15.9", True), ("3.7.0", False), ("3.16.0.dev2026", False)],
)
def test_an_untested_version_is_a_warning(monkeypatch, version, is_tested):
    monkeypatch.setattr(keras, "__version__", version)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        versions.warn_if_untested(["a:function", "a:Class.other"])

    expected = (
        f"tfdist was not tested with this version of Keras. Received: Keras {version}; "
        "tested are 3.8 to 3.15. These 2 symbols were checked and found as expected: "
        "function, Class.other. Run `tfdist verify` on your own script: it compares "
        "what several processes end with to what one ends with."
    )
    assert [str(one.message) for one in seen] == [expected] * (not is_tested)


PLAIN_KERAS = """
    import keras
    import numpy as np
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    from tfdist.compat.keras.install import install

    random = np.random.default_rng(3)
    x = random.normal(size=(12, 4)).astype("float32")
    y = x[:, :1] - x[:, 1:2]


    def results():
        keras.utils.set_random_seed(1)
        layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.3, seed=2)]
        model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
        inner = keras.optimizers.Adam(
            0.01, global_clipnorm=0.5, gradient_accumulation_steps=2, use_ema=True
        )
        scaled = keras.optimizers.LossScaleOptimizer(inner)
        model.compile(scaled, "mse", metrics=["mae"])
        options = {"batch_size": 5, "epochs": 2, "validation_split": 0.2, "verbose": 0}
        history = model.fit(x, y, **options).history
        history.pop("loss_scale", None)  # This is meant to be new.
        return [
            history,
            [weight.tolist() for weight in model.get_weights()],
            float(model.train_on_batch(x, y)[0]),
            model.predict(x, verbose=0).tolist(),
        ]


    def patched():
        return hasattr(BaseOptimizer._clip_gradients, "__wrapped__")


    before, patched_before = results(), patched()
    for _ in range(2):
        install(is_alone=True)
    print(patched_before, patched(), before == results(), len(str(before)) > 300)
    install(is_alone=False)
    try:
        results()
    except RuntimeError as error:
        print(error)
    """


def test_plain_keras_is_not_changed_by_the_patches(forked):
    code, stdout, stderr = run(PLAIN_KERAS)

    assert code == 0, stderr
    equal, refused = stdout.splitlines()
    assert equal.split() == ["False", "True", "True", "True"]
    assert re.fullmatch(
        r"The model 'sequential\S*' was made outside of strategy\.scope\(\): each "
        r"process would train one of its own\. Received: variables \S+/gamma \(4,\); "
        r"\S+/beta \(4,\); \S+/kernel \(4, 1\)\. Make and compile the model in a block "
        r"`with strategy\.scope\(\):`\.",
        refused,
    )


# Hooks.


def test_a_strategy_of_ours_has_every_hook():
    hooks = AllReduceStrategy().extended.keras_hooks
    parts = [
        part for part in KerasHooks.__mro__ if part.__module__ == KerasHooks.__module__
    ]
    asked = {name for part in parts for name in [*vars(part), *part.__annotations__]}

    assert "prepare_gradients" in asked
    assert {n for n in asked if n[0] != "_" and not hasattr(hooks, n)} == set()
