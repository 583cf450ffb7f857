import subprocess
import sys

# For a whole process, as it cannot be switched off.
PROGRAM = """
import tfdist

tfdist.devices.split("CPU:0", 2)
tfdist.devices.log_placement()

import tensorflow as tf


@tf.function
def train_step(x):
    with tf.device("CPU:1"):
        return tf.multiply(x, 2.0, name="on_the_second")


train_step(1.0)
try:
    tfdist.devices.log_placement()
except RuntimeError as error:
    print(error)
"""


def test_tensorflow_says_where_operations_run():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    (line,) = (x for x in done.stdout.splitlines() if x.startswith("on_the_second: "))
    assert line.endswith("device:CPU:1")
    assert (
        "Placement must be logged before TensorFlow starts its devices. Received: "
        "log_placement() in a TensorFlow that has already started them (an operation "
    ) in done.stdout.splitlines()[-1]
