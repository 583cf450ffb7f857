"""Keras on another backend, which a strategy cannot train."""

import subprocess
import sys


def test_another_backend_is_refused(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        'import os\n\nos.environ["KERAS_BACKEND"] = "numpy"\n\nimport keras\n'
    )
    command = [sys.executable, "-m", "tfdist.default_strategy", "all_reduce", script]
    ended = subprocess.run(
        command, capture_output=True, check=False, text=True, timeout=120
    )

    assert ended.returncode == 1
    assert (
        "--strategy all_reduce needs Keras on TensorFlow. Received: the backend "
        "'numpy'. Set KERAS_BACKEND=tensorflow, also where the script sets it."
    ) in ended.stderr
