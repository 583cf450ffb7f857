"""A search of Keras Tuner tries the same trials on all ranks of a job."""

import json
import re
import sys

import pytest
from launcher import TFDIST, printed_by
from page_blocks import blocks_of

pytestmark = [pytest.mark.new_processes, pytest.mark.slow]

BEFORE = """
import json

import keras
import keras_tuner
import numpy as np

import tfdist

strategy = tfdist.strategies.AllReduceStrategy()
x = np.arange(80.0).reshape(40, 2) / 80
y = x[:, :1]
x_test, y_test = x, y

def build_model(parameters):
    units = parameters.Int("units", 1, 64)
    layers = [keras.layers.Dense(units), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((2,)), *layers])
    model.compile(keras.optimizers.SGD(parameters.Float("rate", 0.001, 0.1)), "mse")
    return model

keras.utils.set_random_seed(1)
"""
AFTER = """
trials = tuner.oracle.trials
found = [[t.trial_id, t.hyperparameters.values, t.score] for t in trials.values()]
print(json.dumps([found, best.values]))
"""


def test_the_search_of_the_page_is_that_of_one_process(tmp_path):
    pytest.importorskip("keras_tuner", reason="keras_tuner is not installed")
    *_, block = blocks_of("docs/with_others.md", "python")
    program = tmp_path / "search.py"
    program.write_text(BEFORE + block.text + AFTER)

    out = printed_by(*TFDIST, "-np", "2", program, cwd=tmp_path)
    # A search goes on where its folder ends.
    (tmp_path / "alone").mkdir()
    alone = printed_by(sys.executable, program, cwd=tmp_path / "alone")

    first, second = (
        json.loads(line) for line in re.findall(r"^\[[01]\] (\[\[.*)$", out, re.M)
    )
    one = json.loads(re.findall(r"^(\[\[.*)$", alone, re.M)[-1])
    assert first == second
    assert len(first[0]) == 8
    for (_, values, score), (_, right, of_one) in zip(first[0], one[0], strict=True):
        assert values == right
        assert score == pytest.approx(of_one, rel=1e-4)
