"""Clusters of the tasks that Slurm's `srun` starts."""

import re
from collections.abc import Mapping

from tfdist.cluster.address import parse_digits
from tfdist.cluster.hosts import deal, expand, expand_counts
from tfdist.cluster.model import Cluster, Task
from tfdist.cluster.resolvers.launchers import LAUNCHERS, ClusterResolver, number

_IN_EVERY_STEP = ("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")
_HOSTS = "SLURM_STEP_NODELIST"
_COUNTS = "SLURM_STEP_TASKS_PER_NODE"
_PORT_BASE = "TFDIST_PORT_BASE"

# 13000 to 31999: above the ports of services and the ports that Slurm's guide reserves
# for MPI, and below Linux's ports for outgoing connections. Each step takes a block of
# ports, so that steps and jobs on one node rarely collide.
_FIRST_PORT = 13_000
_PORTS = 19_000
_PORTS_OF_A_STEP = 32
_STEPS_OF_A_JOB = 16


def _is_task(env: Mapping[str, str]) -> bool:
    """Return whether this is one of several tasks, without an inner launcher."""
    is_step = all(env.get(name) for name in _IN_EVERY_STEP)
    # Launchers that use a step to reach the nodes, or run in one, set the ranks.
    has_inner_launcher = any(each.recognises(env) for each in LAUNCHERS)
    return is_step and env["SLURM_STEP_NUM_TASKS"] != "1" and not has_inner_launcher


def _read_step(env: Mapping[str, str]) -> Cluster:
    """Read the cluster from the variables of the step."""
    hosts = expand(env.get(_HOSTS, ""), place=_HOSTS)
    counts = expand_counts(env.get(_COUNTS, ""), place=_COUNTS)
    size = number(env, "SLURM_STEP_NUM_TASKS", SLURM.launcher)
    rank = number(env, "SLURM_PROCID", SLURM.launcher)
    if len(hosts) != len(counts) or sum(counts) != size or rank >= size:
        raise ValueError(
            "The variables of `srun` do not go together. "
            f"Received: {_HOSTS}={env[_HOSTS]!r} with {len(hosts)} nodes, "
            f"{sum(counts)} tasks on {len(counts)} in {_COUNTS}={env[_COUNTS]!r}, "
            f"SLURM_STEP_NUM_TASKS={size}, SLURM_PROCID={rank}. "
            "Start the program with `srun`, and do not change its variables."
        )
    places = deal(counts, at_once=_at_once(env, counts))
    node, place = places[rank]
    _check_own_place(env, hosts[node], node, place)
    base = _port_base(env, max(counts))
    return Cluster(
        workers=tuple(f"{hosts[node]}:{base + place}" for node, place in places),
        task=Task("worker", rank),
        run_id=_run_id(env),
    )


def _at_once(env: Mapping[str, str], counts: tuple[int, ...]) -> int:
    """Return the number of tasks that each node takes per turn."""
    block = max(counts)
    # The components of a heterogeneous step follow one another, and the variable
    # describes only one of them. A single node has only one order.
    if env.get("SLURM_HET_SIZE") or len(counts) == 1:
        return block
    distribution = env.get("SLURM_DISTRIBUTION", "")
    # The part after a colon concerns the cores within a node.
    match re.split("[:,=]", distribution.lower())[0]:
        case "" | "*" | "block" | "pack" | "nopack":
            return block
        case "cyclic":
            return 1
        case "plane":
            # `srun` refuses 0, which would make `deal` loop forever.
            return max(1, number(env, "SLURM_DIST_PLANESIZE", SLURM.launcher))
        case _:
            raise ValueError(
                "SLURM_DISTRIBUTION does not give the node of each task. "
                f"Received: SLURM_DISTRIBUTION={distribution!r}. "
                "Start the step with `srun --distribution=block`, or cyclic."
            )


def _check_own_place(env: Mapping[str, str], host: str, node: int, place: int) -> None:
    """Raise if Slurm's own numbers for this task contradict its computed place."""
    computed = {
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": str(place),
        "SLURMD_NODENAME": host,
    }
    told = {name: env[name] for name in computed if env.get(name)}
    if not told.items() <= computed.items():
        raise ValueError(
            "The variables of `srun` give this process two places. Received: "
            f"{_assignments(told)}, but task {env['SLURM_PROCID']} of {env[_COUNTS]} "
            f"on {env[_HOSTS]}, distributed as "
            f"{env.get('SLURM_DISTRIBUTION') or 'block'!r}, has "
            f"{_assignments(computed)}. Start the step with `srun "
            "--distribution=block`, and of a heterogeneous job one component "
            "(--het-group=0); in a script of `sbatch` that was called in a step, unset "
            "SLURM_STEP_ID."
        )


def _assignments(variables: Mapping[str, str]) -> str:
    """Format variables as shell assignments."""
    return " ".join(f"{name}={value}" for name, value in variables.items())


def _port_base(env: Mapping[str, str], most: int) -> int:
    """Return the port of the first task on each node."""
    given = env.get(_PORT_BASE)
    if not given:
        job = number(env, "SLURM_JOB_ID", SLURM.launcher)
        step = number(env, "SLURM_STEP_ID", SLURM.launcher)
        ports = max(most, _PORTS_OF_A_STEP)
        blocks = max(1, _PORTS // ports)
        return _FIRST_PORT + ports * ((job * _STEPS_OF_A_JOB + step) % blocks)
    last = 65_536 - most
    base = parse_digits(given, most=5) or 0
    if not 1 <= base <= last:
        raise ValueError(
            f"{_PORT_BASE} must be a port from 1 to {last}, as the {most} tasks of a "
            f"node have the ports from it on. Received: {_PORT_BASE}={given!r}. "
            f"Use the same for all tasks, for example {_FIRST_PORT}, or unset it."
        )
    return base


def _run_id(env: Mapping[str, str]) -> str:
    """Return an identifier of this step that changes with a requeue."""
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    return "slurm-" + ".".join(env[name] for name in names if env.get(name))


# The script of `sbatch` is a single process, and has only SLURM_PROCID. No variable
# gives ports: they follow from the job and step, or from TFDIST_PORT_BASE.
SLURM = ClusterResolver("slurm", "srun", _is_task, _read_step)
