"""Private TensorFlow and Keras symbols are used in tfdist/compat and nowhere else."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for folder in ("tfdist", "cli", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if ROOT / "tfdist" / "compat" not in path.parents
]
PRIVATE = ("tensorflow.python", "tf.python", "keras.src")


def test_nothing_private_is_used_outside_compat():
    found = {
        str(path.relative_to(ROOT)): uses
        for path in SOURCES
        if (uses := private_uses(ast.parse(path.read_text())))
    }

    assert found == {}, "Move it to tfdist/compat, with the versions and the reason."


@pytest.mark.parametrize(
    "line",
    [
        "import keras.src.losses",
        "import tensorflow.python.eager.context as context",
        "from keras.src import backend",
        "from keras import src",
        "from tensorflow.python.distribute import values",
        "importlib.import_module('keras.src.trainers')",
        "tf.python.eager.context()",
        "keras.src.backend.core",
    ],
)
def test_every_way_to_reach_a_private_symbol_is_seen(line):
    assert private_uses(ast.parse(line)) != []


@pytest.mark.parametrize(
    "line", ["import keras", "from tensorflow import distribute", "source.src = 1"]
)
def test_public_names_pass(line):
    assert private_uses(ast.parse(line)) == []


def private_uses(tree):
    names = [name for node in ast.walk(tree) for name in names_in(node)]
    return sorted({name for name in names if is_private(name)})


def names_in(node):
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom(module=str()):
            return [f"{node.module}.{alias.name}" for alias in node.names]
        case ast.Attribute():
            return [ast.unparse(node)]
        case ast.Constant(value=str()):
            return [node.value]
    return []


def is_private(name):
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in PRIVATE)
