"""TensorFlow's devices, for `tfdist env --devices`."""

import json
import subprocess
import sys
from collections.abc import Mapping

# None: unknown on this system.
Fact = str | int | float | list[str] | None
Facts = dict[str, Fact]

_SECONDS = 300.0
_LAST_LINES = 5
_MARK = "tfdist-devices "
# The mark starts on a new line, because TensorFlow may print text before it.
_LOOK = f"""
import json
import tensorflow as tf


def names(devices):
    return [f"{{each.name}} {{each.device_type}}" for each in devices]


build = tf.sysconfig.get_build_info()
facts = {{
    "tensorflow": tf.__version__,
    "git_version": tf.version.GIT_VERSION,
    "physical_devices": names(tf.config.list_physical_devices()),
    "logical_devices": names(tf.config.list_logical_devices()),
    "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads(),
    "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),
}}
facts |= {{f"build_{{name}}": str(build[name]) for name in sorted(build)}}
print("\\n{_MARK}" + json.dumps(facts), flush=True)
"""


def device_facts(env: Mapping[str, str], timeout_seconds: float = _SECONDS) -> Facts:
    """Return the devices that TensorFlow finds, in a separate process."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LOOK],
            env=dict(env),
            capture_output=True,
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"TensorFlow has not answered in {timeout_seconds:g} s"}
    for line in done.stdout.decode(errors="replace").splitlines():
        if line.startswith(_MARK):
            facts: Facts = json.loads(line.removeprefix(_MARK))
            return facts
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return {"failed": [f"exit code {done.returncode}", *said[-_LAST_LINES:]]}
