"""The process in which `tfdist verify` runs a script."""

import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from tfdist.verify import Orders

SCRIPT = """
import tensorflow as tf

config = tf.config.experimental
print(config.tensor_float_32_execution_enabled())
config.enable_tensor_float_32_execution(True)
print(config.tensor_float_32_execution_enabled())
"""


@pytest.mark.parametrize("bits", [False, True])
def test_tensor_float_32_stays_off_unless_bits_are_compared(bits, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    orders = json.dumps(asdict(Orders((str(script),), bits=bits)))
    done = subprocess.run(
        [sys.executable, "-m", "tfdist.verify.child", orders, str(tmp_path), "--lone"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(bits)] * 2
