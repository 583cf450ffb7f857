"""Start-up of the Python processes that distributed tests start; see `conftest.py`."""

import os
import sys

if socket_path := os.environ.get("TESTS_FORK_SERVER"):
    sys.path.insert(0, os.path.dirname(__file__))
    import fork_client

    del sys.path[0]
    fork_client.run_forked(socket_path)

if "TESTS_WITHOUT_EXTRAS" in os.environ:
    # Keras imports these only because they are installed, which takes a third of the
    # start of a process. To import them is now an error.
    for package in ("matplotlib", "sklearn"):
        sys.modules[package] = None
