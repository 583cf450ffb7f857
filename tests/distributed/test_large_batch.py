"""The large-batch example on two processes: each recipe trains one global batch."""

import os
import re
from pathlib import Path

import pytest
from launcher import COMMAND, printed_by

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[2] / "examples" / "large_batch.py"
ROW = re.compile(r"^\| ([\w -]+?) +\| +(\d+) \| +(\d+) \| +([\d.]+) \|", re.MULTILINE)


def test_two_processes_share_the_large_batch(tmp_path):
    printed_by(
        *(COMMAND, "run", "-np", "2", "--output-dir", tmp_path, PROGRAM),
        *("--epochs=6", "--seeds=1", "--times=16"),
        env={**os.environ, "TFDS_DATA_DIR": str(tmp_path / "data")},
    )
    chief, other = ((tmp_path / f"rank.{n}.log").read_text() for n in range(2))

    # 1,437 examples are 45 batches of 32 and 3 of 512, however many compute them.
    rows = {name: (batch, steps) for name, batch, steps, _ in ROW.findall(chief)}
    assert rows.pop("small batch") == ("32", "270")
    assert rows.pop("naive") == ("512", "18")
    assert set(rows.values()) == {("512", "18")}
    assert len(rows) == 4
    accuracies = {name: float(value) for name, *_, value in ROW.findall(chief)}
    assert accuracies["small batch"] > 0.9
    assert accuracies["LARS with warm-up"] > accuracies["naive"]
    assert "|" not in other
