"""A tool of PMIx, which asks a server to run a command.

`pmix_tool.py USER LIBRARY URI COMMAND...` exits with 0 if the server takes the command.
The user has this number, and calls itself root.
"""

import ctypes
import os
import sys
from pathlib import Path

_STRING = 3  # PMIX_STRING
_CLONE_NEWUSER = 0x10000000
_PR_SET_DUMPABLE = 4


class App(ctypes.Structure):
    """The `pmix_app_t` of PMIx."""

    _fields_ = (
        ("cmd", ctypes.c_char_p),
        ("argv", ctypes.POINTER(ctypes.c_char_p)),
        ("env", ctypes.POINTER(ctypes.c_char_p)),
        ("cwd", ctypes.c_char_p),
        ("maxprocs", ctypes.c_int),
        ("info", ctypes.c_void_p),
        ("ninfo", ctypes.c_size_t),
    )


def main(user, library, uri, *command):
    """Connect as a tool, and spawn a command."""
    pmix = ctypes.CDLL(library)
    pmix.PMIx_Info_create.restype = ctypes.c_void_p
    pmix.PMIx_Error_string.restype = ctypes.c_char_p
    if int(user) != os.geteuid():
        become(int(user))
    one = ctypes.c_size_t(1)
    # The name and the rank that the server gives to the tool.
    own = ctypes.create_string_buffer(1024)
    server = information(pmix, "pmix.srvr.uri", uri)
    check(pmix, "connect", pmix.PMIx_tool_init(own, server, one))

    words = (ctypes.c_char_p * (len(command) + 1))(*map(str.encode, command), None)
    app = App(cmd=words[0], argv=words, cwd=b"/", maxprocs=1)
    # The ranks have all slots.
    where = information(pmix, "pmix.mapby", "slot:OVERSUBSCRIBE")
    name = ctypes.create_string_buffer(1024)
    status = pmix.PMIx_Spawn(where, one, ctypes.byref(app), one, name)
    check(pmix, "spawn", status)
    pmix.PMIx_tool_finalize()


def become(user):
    """Become another user, who is root in a namespace of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    if libc.unshare(_CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {user} 1")


def information(pmix, key, text):
    """Return an array of one `pmix_info_t`."""
    info = ctypes.c_void_p(pmix.PMIx_Info_create(ctypes.c_size_t(1)))
    kind = ctypes.c_ushort(_STRING)
    pmix.PMIx_Info_load(info, key.encode(), text.encode(), kind)
    return info


def check(pmix, what, status):
    """Exit with a line if a call has failed."""
    if status != 0:
        sys.exit(f"{what}: {pmix.PMIx_Error_string(status).decode()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
