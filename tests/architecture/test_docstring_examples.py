"""The examples in the docstrings run, in one process of their own."""

import subprocess
import sys

RUN_EVERY_EXAMPLE = """
import doctest, importlib, pkgutil
import tfdist, tfdist_cli

names = [
    module.name
    for package in (tfdist, tfdist_cli)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.name.endswith("__main__")
]
failed = attempted = 0
for name in ["tfdist", *names]:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        # What tfdist works without; `make test` builds Horovod first.
        if error.name in ("horovod", "torch") or "horovod install" in str(error):
            continue
        raise
    result = doctest.testmod(
        module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    failed, attempted = failed + result.failed, attempted + result.attempted
print("examples failed:", failed, "attempted:", attempted)
"""


def test_every_example_runs(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", RUN_EVERY_EXAMPLE],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "examples failed: 0" in done.stdout, done.stdout
    assert "attempted: 0" not in done.stdout
