"""Start-up of the Python processes that tests start; see `tests/conftest.py`."""

import os
import sys

if socket_path := os.environ.get("TESTS_FORK_SERVER"):
    sys.path.insert(0, os.path.dirname(__file__))
    import fork_client

    del sys.path[0]
    fork_client.run_forked(socket_path)
