"""The public names are frozen: adding one is a decision, losing one breaks users."""

import ast
import importlib
from pathlib import Path

import pytest

import tfdist

ROOT = Path(__file__).parents[2]

PUBLIC = {
    "tfdist": {
        "__version__",
        "callbacks",
        "cluster",
        "is_chief",
        "local_rank",
        "local_size",
        "mixed_precision",
        "rank",
        "size",
        "strategies",
        "testing",
    },
    "tfdist.callbacks": {"Throughput"},
    "tfdist.cluster": {"Cluster", "Task", "detect"},
    "tfdist.mixed_precision": {"LossScaleOptimizer", "loss_scale", "set_policy"},
    "tfdist.strategies": {"AllReduceStrategy", "create"},
    "tfdist.testing": {"ClusterError", "ClusterResult", "RankError", "cluster"},
}


@pytest.mark.parametrize("module_name", PUBLIC)
def test_public_names_are_these_and_resolve(module_name):
    module = importlib.import_module(module_name)

    assert set(module.__all__) == PUBLIC[module_name]
    assert all(hasattr(module, name) for name in module.__all__)


def test_type_checkers_see_what_the_table_says():
    tree = ast.parse((ROOT / "tfdist" / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.asname: line.module for line in block.body for alias in line.names}

    assert ast.unparse(block.test) == "TYPE_CHECKING"
    assert seen == {
        name: module.removesuffix(f".{name}")
        for name, module in tfdist._PUBLIC_NAMES.items()
    }
