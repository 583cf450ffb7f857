"""The three scripts of the cookbook train on two processes as on one.

In float64: in float32 the rounding of a step grows in those that follow, above all
where two pixels of a pool are nearly equal, so that one process differs from itself.
"""

import re
from pathlib import Path

import keras
import numpy as np
import pytest
from launcher import COMMAND, printed_by

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = {
    "images_from_folders.py": "images.keras",
    "text_from_folders.py": "text.keras",
    "table.py": "table.keras",
}
# From the model on, because Keras's RandomRotation cannot compute in it.
SCOPE = "with strategy.scope():"
IN_FLOAT64 = f"""
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
{SCOPE}"""


def history_in(log):
    """Return the numbers at the end of each epoch, as a list of all."""
    ends = [line for line in re.split("[\r\n]", log.read_text()) if "val_loss" in line]
    return [[float(n) for n in re.findall(r": (\d\.\d+\S*)", line)] for line in ends]


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_same_weights_and_history_on_two_processes_as_on_one(script, tmp_path):
    text = (EXAMPLES / script).read_text()
    (tmp_path / script).write_text(text.replace(SCOPE, IN_FLOAT64))
    folders = [tmp_path / str(processes) for processes in (1, 2)]
    for folder in folders:
        folder.mkdir()
        printed_by(
            COMMAND,
            *("run", "-np", folder.name, "--threads-per-process", 1),
            *("--output-dir", folder, tmp_path / script),
            cwd=folder,
        )

    models = [keras.models.load_model(folder / SCRIPTS[script]) for folder in folders]
    alone, together = ([w.numpy() for w in model.weights] for model in models)
    for one, other in zip(alone, together, strict=True):
        assert other == pytest.approx(one, rel=0, abs=1e-8 * max(1, one.max()))
    first, second = (history_in(folder / "rank.0.log") for folder in folders)
    assert len(first) > 1
    assert all(min(np.shape(end)) >= 4 for end in first)
    assert np.array(second) == pytest.approx(np.array(first), abs=2e-4)
    for folder in folders:
        assert (folder / "best.keras").exists()
        assert {path.name for path in folder.glob("logs/*")} == {"train", "validation"}
