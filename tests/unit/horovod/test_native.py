import subprocess
import sys

import pytest

BLOCKED = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "horovod":
            raise {error}

sys.meta_path.insert(0, Blocker())
import tfdist
print(tfdist.rank())
try:
    tfdist.horovod
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            "ModuleNotFoundError(\"No module named 'horovod'\")",
            "an environment without it (No module named 'horovod'). "
            "Run `tfdist horovod install`.",
        ),
        (
            "OSError('undefined symbol: _ZN3tsl')",
            "one that cannot be loaded (OSError: undefined symbol: _ZN3tsl). "
            "Run `tfdist horovod install` again",
        ),
    ],
    ids=["missing", "built for another TensorFlow"],
)
def test_what_to_do_without_a_fitting_horovod_is_said_at_the_first_use(error, expected):
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(error=error)],
        capture_output=True,
        text=True,
        check=True,
    )
    rank, message = done.stdout.splitlines()[-2:]

    assert rank == "0"
    assert expected in message
