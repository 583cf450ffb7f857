"""A script for `sbatch`, in which `srun` starts the tasks and tfdist reads Slurm."""

import re

from tfdist.cluster.artefacts.program import Program
from tfdist.cluster.artefacts.workers import equal_slots, hosts_of, port_of
from tfdist.cluster.host_slots import number_ports
from tfdist.cluster.model import Cluster

_NODE = re.compile("[A-Za-z0-9][-A-Za-z0-9._]*")


def sbatch_script(cluster: Cluster, program: Program) -> str:
    """Write the script of a job with the workers of a cluster on its nodes.

    Args:
        cluster: The cluster: workers, as many on each host, with ports counted up from
            the same one.
        program: What it runs; its command stands there as it is, for the shell.

    Returns:
        The script.

    Raises:
        ValueError: If Slurm could not hold the cluster.

    Example:
        >>> script = sbatch_script(Cluster(workers=("a:2222", "b:2222")), Program())
        >>> print(script.splitlines()[-1])
        srun --distribution=block python train.py
    """
    hosts = hosts_of(cluster, "sbatch")
    slots = equal_slots(hosts, "sbatch")
    for host in hosts:
        if not _NODE.fullmatch(host.host):
            raise ValueError(
                "--to sbatch has hosts by the names that Slurm gives them. "
                f"Received: {host.host}. Use those that `sinfo --Node` prints."
            )
    port = port_of(cluster.workers)
    if number_ports(hosts, port) != cluster.workers:
        raise ValueError(
            "--to sbatch counts the ports up on each host, from one that is the same "
            f"on all. Received: {','.join(cluster.workers)}. "
            "Give the hosts with -H and --port."
        )
    return f"""\
#!/bin/bash
#SBATCH --job-name={program.name}
#SBATCH --nodelist={",".join(host.host for host in hosts)}
#SBATCH --nodes={len(hosts)}
#SBATCH --ntasks-per-node={slots}

export TFDIST_PORT_BASE={port}
srun --distribution=block {program.command}
"""
