"""`tfdist env --devices` with TensorFlow itself."""

import json
import os
from importlib import metadata

import pytest
from launcher import COMMAND, printed_by

pytestmark = pytest.mark.slow


def test_the_devices_of_tensorflow():
    printed = printed_by(
        *(COMMAND, "env", "--devices", "--json"),
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
    )

    facts = json.loads(printed)["devices"]
    assert facts["tensorflow"] == metadata.version("tensorflow")
    assert facts["physical_devices"] == ["/physical_device:CPU:0 CPU"]
    assert facts["logical_devices"] == ["/device:CPU:0 CPU"]
    assert facts["build_is_cuda_build"] in ("True", "False")
