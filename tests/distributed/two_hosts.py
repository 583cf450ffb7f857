"""Two hosts on this machine: network namespaces, each with its address and its sshd."""

import getpass
import os
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

ADDRESSES = ("10.77.19.1", "10.77.19.2")
SECONDS = 300


def root(*words, **options):
    """Run a command that only root may."""
    return subprocess.run(
        words, check=True, capture_output=True, text=True, timeout=SECONDS, **options
    )


class TwoHosts:
    """What a test needs of them.

    Attributes:
        ssh: The command with which one host reaches the other.
    """

    def __init__(self, folder):
        self.folder = folder
        # Other tests on this machine may have hosts of their own.
        self.names = tuple(f"tfdist{os.getpid()}-{number}" for number in (1, 2))
        key, known = folder / "id", folder / "known_hosts"
        self.ssh = (
            f"ssh -F none -p 2222 -i {key} -o UserKnownHostsFile={known} "
            "-o LogLevel=ERROR -o ConnectTimeout=60"
        )

    def inside(self, number, *words):
        """Return the words that run a command on one of the hosts."""
        return ("ip", "netns", "exec", self.names[number], *words)

    def cut(self):
        """Cut the link between them."""
        root(*self.inside(1, "ip", "link", "set", "veth2", "down"))

    def join(self):
        """Join them again, and wait until each finds its way to the other."""
        root(*self.inside(1, "ip", "link", "set", "veth2", "up"))
        deadline = time.monotonic() + SECONDS
        for number, other in enumerate(reversed(ADDRESSES)):
            code = f"import socket; socket.create_connection(({other!r}, 2222), 1)"
            connect = self.inside(number, sys.executable, "-c", code)
            while subprocess.run(connect, stderr=subprocess.DEVNULL).returncode:
                assert time.monotonic() < deadline


@contextmanager
def two_hosts(folder):
    """Make two hosts that are joined by a cable, and can only reach each other."""
    hosts = TwoHosts(folder)
    root("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "id"))
    shutil.copy(folder / "id.pub", folder / "authorized_keys")
    with ExitStack() as stack:
        for name in hosts.names:
            root("ip", "netns", "add", name)
            stack.callback(root, "ip", "netns", "delete", name)
        root(
            *("ip", "link", "add", "veth1", "netns", hosts.names[0], "type", "veth"),
            *("peer", "name", "veth2", "netns", hosts.names[1]),
        )
        for number, address in enumerate(ADDRESSES):
            device = f"veth{number + 1}"
            root(*hosts.inside(number, "ip", "link", "set", "lo", "up"))
            root(
                *hosts.inside(number, "ip", "address", "add", f"{address}/24"),
                *("dev", device),
            )
            root(*hosts.inside(number, "ip", "link", "set", device, "up"))
            # As Docker makes it on each host, with the same address.
            root(
                *hosts.inside(number, "ip", "link", "add", "docker0", "type", "bridge")
            )
            root(*hosts.inside(number, "ip", "link", "set", "docker0", "up"))
            root(
                *hosts.inside(number, "ip", "address", "add", "172.17.0.1/16"),
                *("dev", "docker0"),
            )
            stack.enter_context(_sshd(hosts, number))
        yield hosts


@contextmanager
def _sshd(hosts, number):
    """Run the server of one host, whose key the other one knows."""
    key = hosts.folder / f"host{number}"
    root("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    public = key.with_suffix(".pub").read_text()
    address = ADDRESSES[number]
    with open(hosts.folder / "known_hosts", "a") as file:
        file.write(f"[{address}]:2222 {public}")
    settings = {
        "Port": "2222",
        "ListenAddress": address,
        "HostKey": key,
        "AuthorizedKeysFile": hosts.folder / "authorized_keys",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "AllowUsers": getpass.getuser(),
        "PermitRootLogin": "prohibit-password",
        "MaxStartups": "2",
    }
    config = hosts.folder / f"sshd{number}"
    config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    root("mkdir", "-p", "/run/sshd")
    command = shlex.join(["/usr/sbin/sshd", "-D", "-e", "-f", str(config)])
    # MPI takes hosts with one name for one host.
    name = f"hostname {hosts.names[number]}; exec {command}"
    words = hosts.inside(number, "unshare", "--uts", "sh", "-c", name)
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        assert "Server listening" in server.stderr.readline()
        yield
    finally:
        server.terminate()
        server.communicate(timeout=SECONDS)
