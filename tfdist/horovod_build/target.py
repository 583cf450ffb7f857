"""Whether pip can install into the environment of this interpreter."""

import importlib.util
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from tfdist.horovod_build.errors import COULD_NOT_START, BuildError

_MARK = "EXTERNALLY-MANAGED"


def check_target(env: Mapping[str, str]) -> None:
    """Find out before minutes are spent on compiling.

    Args:
        env: The environment of this process.

    Raises:
        BuildError: If pip is missing, or must not touch this Python.
    """
    if importlib.util.find_spec("pip") is None:
        raise BuildError(
            "pip must be installed: it builds Horovod and installs it. Received: "
            f"{sys.executable}, without pip. Run: {sys.executable} -m ensurepip, or, "
            "with uv: uv pip install pip",
            COULD_NOT_START,
        )
    managed = Path(sysconfig.get_path("stdlib"), _MARK)
    in_virtual_environment = sys.prefix != sys.base_prefix
    if (
        managed.exists()
        and not in_virtual_environment
        and "PIP_BREAK_SYSTEM_PACKAGES" not in env
    ):
        raise BuildError(
            "Horovod must go to an environment that pip may change. Received: "
            f"{sys.executable}, which the system manages. "
            "Use a virtual environment: python -m venv .venv",
            COULD_NOT_START,
        )
