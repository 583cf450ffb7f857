"""A network in which there is this machine alone."""

import ctypes
import os
import subprocess
import sys

import pytest

from tfdist.launching.isolation import isolate_network

_PR_SET_DUMPABLE = 4
# A process without root, which may write its own maps again.
NOBODY = """
import ctypes, os
os.setgroups([]); os.setgid(65534); os.setuid(65534)
ctypes.CDLL(None).prctl({dumpable}, 1, 0, 0, 0)
"""
ISOLATED = """
import os, socket
isolate_network()
print([name for _, name in socket.if_nameindex()], os.getuid())
with socket.socket() as server, socket.socket() as client:
    server.bind(("127.0.0.1", 0))
    server.listen()
    client.connect(server.getsockname())
    print("reached")
"""


# Only root can become another user.
@pytest.mark.parametrize("user", {os.getuid(), os.getuid() or 65534})
def test_only_this_machine_is_there(user):
    """The import comes first, as nobody may not read it."""
    is_other = user != os.getuid()
    become = NOBODY.format(dumpable=_PR_SET_DUMPABLE) if is_other else ""
    importing = "from tfdist.launching.isolation import isolate_network"

    done = subprocess.run(
        [sys.executable, "-c", f"{importing}\n{become}\n{ISOLATED}"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == f"['lo'] {user}\nreached\n", done.stderr


def test_where_namespaces_are_forbidden(monkeypatch):
    class NoNamespaces:
        """The C library of a system that forbids them."""

        def __init__(self, name, use_errno):
            pass

        def unshare(self, flags):
            ctypes.set_errno(1)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", NoNamespaces)
    with pytest.raises(OSError, match=r"Received: \[Errno 1\] unshare\. Leave it out"):
        isolate_network()
