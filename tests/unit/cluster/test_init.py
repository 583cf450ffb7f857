import subprocess
import sys

import tfdist.cluster
from tfdist.cluster import detect, model


def test_the_public_names():
    assert tfdist.cluster.__all__ == ["Cluster", "Task", "detect"]
    assert tfdist.cluster.Cluster is model.Cluster
    assert tfdist.cluster.Task is model.Task
    assert detect({}) == model.Cluster()


def test_importing_it_loads_nothing_that_is_slow():
    slow = "asyncio difflib importlib.metadata ipaddress keras logging multiprocessing "
    slow += "numpy socket subprocess tensorflow urllib.parse"
    program = (
        "import sys; before = set(sys.modules); import tfdist.cluster; "
        f"print(sorted((set(sys.modules) - before) & set({slow.split()!r})))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"
