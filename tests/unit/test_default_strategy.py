"""Keras on another backend, which a strategy cannot train."""

import subprocess
import sys


def test_another_backend_is_refused(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import keras\n")
    # In place of Keras, which imports no other backend that is not installed.
    stand_in = "class backend:\n    backend = staticmethod(lambda: 'jax')\n"
    (tmp_path / "keras.py").write_text(stand_in)
    command = [sys.executable, "-m", "tfdist.default_strategy", "all_reduce", script]
    ended = subprocess.run(
        command, capture_output=True, check=False, text=True, timeout=300
    )

    assert ended.returncode == 1
    assert (
        "--strategy all_reduce needs Keras on TensorFlow. Received: the backend "
        "'jax'. Set KERAS_BACKEND=tensorflow, also where the script sets it."
    ) in ended.stderr
