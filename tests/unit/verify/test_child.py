"""The process in which `tfdist verify` runs a script."""

import json
import subprocess
import sys
from dataclasses import asdict

from tfdist.verify import Orders

SCRIPT = """
import tensorflow as tf

config = tf.config.experimental
print(config.tensor_float_32_execution_enabled())
config.enable_tensor_float_32_execution(True)
print(config.tensor_float_32_execution_enabled())
"""


def test_tensor_float_32_stays_off(forked, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    own = {"folder": str(tmp_path), "lone": True, "order": None}
    orders = json.dumps(asdict(Orders((str(script),))) | own)
    done = subprocess.run(
        [sys.executable, "-m", "tfdist.verify.child", orders],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False"] * 2
