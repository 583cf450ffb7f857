"""`tfdist env --devices` with TensorFlow itself."""

import json
import os
import subprocess
import sys
from importlib import metadata

import pytest

pytestmark = pytest.mark.slow

SECONDS = 300
TFDIST = (sys.executable, "-c", "from tfdist_cli.main import main; exit(main())")


def test_the_devices_of_tensorflow():
    done = subprocess.run(
        [*TFDIST, "env", "--devices", "--json"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
    )

    facts = json.loads(done.stdout)["devices"]
    assert facts["tensorflow"] == metadata.version("tensorflow")
    assert facts["physical_devices"] == ["/physical_device:CPU:0 CPU"]
    assert facts["logical_devices"] == ["/device:CPU:0 CPU"]
    assert facts["build_is_cuda_build"] in ("True", "False")
