"""A real Slurm with one node, which is this machine, in a folder of its own."""

import getpass
import os
import secrets
import socket
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager

from tfdist.launching.machine import free_ports

# The node's name is also the address at which tasks find each other.
NODE = "127.0.0.1"
START_SECONDS = 300

CONFIG = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
MessageTimeout=100
SlurmdParameters=config_overrides
NodeName={node} NodeAddr=127.0.0.1 NodeHostname={host} CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """The commands of Slurm, as this cluster's users call them.

    Args:
        folder: Where everything of the cluster is.
    """

    def __init__(self, folder):
        self._folder = folder
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *command, timeout=1200, **options):
        """Call a command and return what it has printed, on whichever stream."""
        for _ in range(3):
            done = subprocess.run(
                [str(word) for word in command],
                env=self.env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=timeout,
                check=False,
                **options,
            )
            # On a starved machine Slurm may give up before any task has started.
            if "aborted before step completely launched" not in done.stdout:
                break
        assert done.returncode == 0, f"{done.stdout}\n{self.logs()}"
        return done.stdout

    def logs(self):
        """Return the ends of the logs of all daemons."""
        logs = sorted(self._folder.glob("*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in logs)

    def wait_until_idle(self):
        """Wait until the node is ready for jobs."""
        deadline = time.monotonic() + START_SECONDS
        state = ""
        while state != "idle":
            assert time.monotonic() < deadline, f"{state}\n{self.logs()}"
            threading.Event().wait(0.1)
            state = subprocess.run(
                ["sinfo", "--noheader", "--format=%T"],
                env=self.env,
                capture_output=True,
                text=True,
                check=False,
            ).stdout.strip()


@contextmanager
def slurm_cluster(folder):
    """Start the daemons, and end them by their own handles."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    config = CONFIG.format(
        host=socket.gethostname().partition(".")[0],
        ports=free_ports(2),
        user=getpass.getuser(),
        folder=folder,
        node=NODE,
    )
    (folder / "slurm.conf").write_text(config)
    cluster = SlurmCluster(folder)
    with ExitStack() as stack:
        for command in (
            munged_in(folder),
            ["slurmctld", "-D"],
            ["slurmd", "-D", "-N", NODE],
        ):
            stack.enter_context(daemon(command, folder, cluster.env))
        cluster.wait_until_idle()
        yield cluster


def munged_in(folder):
    """Return the command of the daemon that vouches for users, all its files here."""
    files = ("socket", "pid-file", "log-file", "seed-file")
    return [
        "munged",
        "--foreground",
        "--force",
        f"--key-file={folder}/munge.key",
        *(f"--{file}={folder}/munge.{file.partition('-')[0]}" for file in files),
    ]


@contextmanager
def daemon(command, folder, env):
    """Start a daemon in the foreground, with what it prints in a log of its name."""
    with (folder / f"{command[0]}.log").open("w") as log:
        process = subprocess.Popen(
            command, env=env, cwd=folder, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(timeout=120)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
