"""A network without other hosts, for the processes of a run."""

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

# <linux/sched.h>, <linux/sockios.h> and <linux/if.h>
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


def isolate_network() -> None:
    """Move this process, and all that it will start, to a network of loopback alone."""
    try:
        enter_network()
    except OSError as error:
        raise OSError(
            "--isolate-network needs namespaces, which this system forbids. Received: "
            f"{error}. Leave it out, and keep other hosts out with a firewall, or ask "
            "for user namespaces."
        ) from None


def enter_network() -> None:
    """Move this process to a network of loopback alone; raise OSError if forbidden."""
    _unshare_network()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        up = struct.pack("16sh14x", b"lo", _IFF_UP)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, up)


def _unshare_network() -> None:
    """Enter a new network, if need be in a new user namespace."""
    # Without root a new network needs a new user namespace, in which every number keeps
    # its meaning. A process with threads may not enter one.
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) == 0:
        return
    if libc.unshare(_CLONE_NEWNET | _CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
