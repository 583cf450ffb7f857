"""The example of items without a vocabulary: both ways learn; plain Keras serves."""

import re
import sys
from pathlib import Path

import pytest
from launcher import COMMAND, printed_by

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
DAYS = "--days=4"
SERVING = """
import sys
import keras

towers = [keras.models.load_model(f"{name}.keras") for name in ("users", "items")]
assert "tfdist" not in sys.modules

sys.path.append(sys.argv[1])
import two_towers

*_, (items, users, clicked) = two_towers.make_days(4, 20_000)
recall = two_towers.recall(*towers, items, users[:2000], clicked[:2000])
print(f"recall {recall:.3f}")
"""


@pytest.mark.parametrize(
    "options",
    [("-np=2", "--table=hashed"), ("--workers=2", "--ps=1", "--table=dynamic")],
    ids=["hashed", "dynamic"],
)
def test_a_new_item_is_found_and_served(options, tmp_path):
    *launch, table = options
    script = EXAMPLES / "two_towers.py"
    save_to = f"--save_to={tmp_path}"

    printed = printed_by(COMMAND, "run", *launch, script, table, save_to, DAYS)
    served = printed_by(sys.executable, "-Ic", SERVING, EXAMPLES, cwd=tmp_path)

    by_day = re.findall(r"recall (\d\.\d+), at random", printed)
    assert len(by_day) == 4
    # By chance, 50 of 1,000 items have 0.05 of the clicks.
    assert float(by_day[-1]) > 0.15
    assert float(served.split()[-1]) == pytest.approx(float(by_day[-1]), abs=0.002)
