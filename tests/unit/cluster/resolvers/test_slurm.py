import re

import pytest

from tfdist.cluster.model import Cluster, Task
from tfdist.cluster.resolvers.slurm import SLURM


def env_of(text):
    """Read variables as the command `env` prints them."""
    return dict(variable.split("=") for variable in text.split())


# What Slurm 22.05 gave the batch script of a job with two tasks on each of two nodes.
BATCH = env_of("""
SLURMD_NODENAME=n8 SLURM_JOB_ID=41 SLURM_JOB_NODELIST=n[8-9] SLURM_LOCALID=0
SLURM_NODEID=0 SLURM_NODELIST=n[8-9] SLURM_NTASKS=4 SLURM_PROCID=0
SLURM_TASKS_PER_NODE=2(x2)
""")
# And what its `srun` added to it for the third task.
STEP = BATCH | env_of("""
SLURMD_NODENAME=n9 SLURM_DISTRIBUTION=block SLURM_LOCALID=0 SLURM_NODEID=1
SLURM_PROCID=2 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[8-9] SLURM_STEP_NUM_TASKS=4
SLURM_STEP_TASKS_PER_NODE=2(x2)
""")
PORT = 13000 + 32 * (41 * 16 % 593)
WORKERS = (f"n8:{PORT}", f"n8:{PORT + 1}", f"n9:{PORT}", f"n9:{PORT + 1}")


def step(**changes):
    """Return the environment of the task with some variables changed, None for none."""
    env = STEP | changes
    return {name: value for name, value in env.items() if value is not None}


def place(rank, node, local, host):
    """Return what tells one task of a step from the others."""
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": str(local),
        "SLURMD_NODENAME": host,
    }


def resolve(**changes):
    return SLURM.resolve(step(**changes))


def test_a_task_of_a_step_is_a_worker():
    cluster = SLURM.resolve(STEP)

    assert SLURM.recognises(STEP)
    assert cluster == Cluster(workers=WORKERS, task=Task("worker", 2))
    assert (cluster.local_rank, cluster.local_size) == (0, 2)


@pytest.mark.parametrize(
    "env",
    [
        {},
        # `python train.py` in the script is one process, whatever the job asked for.
        BATCH,
        step(SLURM_STEP_NUM_TASKS="1", SLURM_STEP_TASKS_PER_NODE="1"),
        step(SLURM_STEP_ID=""),
        step(SLURM_PROCID=None),
        step(SLURM_STEP_NUM_TASKS=None),
    ],
)
def test_what_is_not_one_of_several_tasks_is_not_recognised(env):
    assert not SLURM.recognises(env)


@pytest.mark.parametrize(
    "mpi",
    [
        {"PMI_RANK": "2", "PMI_SIZE": "4", "PMI_FD": "11", "PMI_JOBID": "41.0"},
        {"PMIX_RANK": "2", "PMIX_NAMESPACE": "slurm.pmix.41.0"},
        # What scripts set for PyTorch, from Slurm's own numbers.
        {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0"},
    ],
)
def test_what_srun_itself_gives_programs_of_mpi_changes_nothing(mpi):
    assert SLURM.recognises(STEP | mpi)


@pytest.mark.parametrize(
    ("distribution", "nodes"),
    [
        (None, "88899"),
        ("*", "88899"),
        ("block:cyclic", "88899"),
        ("Block,NoPack", "88899"),
        ("pack", "88899"),
        ("cyclic", "89898"),
        ("cyclic:fcyclic:cyclic,pack", "89898"),
        ("plane", "88998"),
        ("plane=2", "88998"),
    ],
)
def test_each_task_has_the_node_that_the_distribution_gives_it(distribution, nodes):
    cluster = resolve(
        SLURM_DISTRIBUTION=distribution,
        SLURM_DIST_PLANESIZE="2",
        SLURM_STEP_NUM_TASKS="5",
        SLURM_STEP_TASKS_PER_NODE="3,2",
        **place(0, 0, 0, "n8"),
    )

    assert "".join(address[1] for address in cluster.addresses) == nodes
    ports = {address for address in cluster.addresses if address.startswith("n8")}
    assert ports == {f"n8:{PORT}", f"n8:{PORT + 1}", f"n8:{PORT + 2}"}


def test_on_one_node_every_distribution_is_the_same():
    cluster = resolve(
        SLURM_DISTRIBUTION="arbitrary",
        SLURM_STEP_NODELIST="n9",
        SLURM_STEP_TASKS_PER_NODE="4",
        **place(2, 0, 2, "n9"),
    )

    assert cluster.addresses == tuple(f"n9:{PORT + i}" for i in range(4))


@pytest.mark.parametrize(
    ("changes", "received"),
    [
        ({"SLURM_LOCALID": "x"}, "SLURM_NODEID=1 SLURM_LOCALID=x SLURMD_NODENAME=n9,"),
        ({"SLURM_STEP_NODELIST": "n[9,8]"}, "SLURM_NODEID=1 SLURM_LOCALID=0 SLURMD_"),
        ({"SLURM_PROCID": "3"}, "SLURM_NODEID=1 SLURM_LOCALID=0 SLURMD_NODENAME=n9,"),
        (
            {"SLURM_DISTRIBUTION": "cyclic"},
            "SLURM_NODEID=1 SLURM_LOCALID=0 SLURMD_NODENAME=n9, but task 2 of 2(x2) on "
            "n[8-9], distributed as 'cyclic', has SLURM_NODEID=0 SLURM_LOCALID=1 "
            "SLURMD_NODENAME=n8. Start the step with `srun --distribution=block`, and ",
        ),
    ],
)
def test_a_process_in_another_place_is_refused(changes, received):
    with pytest.raises(
        ValueError, match="^The variables of `srun` give .* two pl"
    ) as e:
        resolve(**changes)

    assert str(e.value).partition("Received: ")[2].startswith(received)


def test_without_the_variables_of_the_place_the_rank_decides():
    names = ("SLURM_NODEID", "SLURM_LOCALID", "SLURMD_NODENAME")

    assert resolve(**dict.fromkeys(names)).address == f"n9:{PORT}"


# A heterogeneous step of two tasks on one node and one on each of two others. Slurm
# tells the distribution of a component, and sorts the nodes of all.
HETEROGENEOUS = env_of("""
SLURM_HET_SIZE=2 SLURM_DISTRIBUTION=cyclic SLURM_STEP_NODELIST=n[8-10]
SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2,1(x2)
""")


def test_the_components_of_a_heterogeneous_step_follow_each_other():
    cluster = resolve(**HETEROGENEOUS, **place(3, 2, 0, "n10"))

    hosts = [address.partition(":")[0] for address in cluster.addresses]
    assert hosts == ["n8", "n8", "n9", "n10"]


def test_components_in_another_order_than_their_nodes_are_refused():
    message = (
        "Received: SLURM_NODEID=0 SLURM_LOCALID=0 SLURMD_NODENAME=n10, but task 0 .* "
        "of a heterogeneous job one component .*--het-group=0"
    )
    with pytest.raises(ValueError, match=message):
        resolve(**HETEROGENEOUS, **place(0, 0, 0, "n10"))


NUMBER = "must be a whole number, as `srun` sets it. Received: "
TOGETHER = "The variables of `srun` do not go together. Received: SLURM_STEP_NODELIST="


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"SLURM_JOB_ID": "1.5"}, f"SLURM_JOB_ID {NUMBER}SLURM_JOB_ID='1.5'. Start "),
        ({"SLURM_STEP_ID": "two"}, f"SLURM_STEP_ID {NUMBER}SLURM_STEP_ID='two'. Start"),
        ({"SLURM_PROCID": "²"}, f"SLURM_PROCID {NUMBER}SLURM_PROCID='²'. Start"),
        (
            {"SLURM_DISTRIBUTION": "plane"},
            f"SLURM_DIST_PLANESIZE {NUMBER}no SLURM_DIST_PLANESIZE. Start",
        ),
        (
            {"SLURM_DISTRIBUTION": "arbitrary"},
            "SLURM_DISTRIBUTION does not give the node of each task. Received: "
            "SLURM_DISTRIBUTION='arbitrary'. Start the step with `srun --distribution",
        ),
        ({"SLURM_STEP_NODELIST": None}, "SLURM_STEP_NODELIST must be a list of at mos"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(3)"}, "SLURM_STEP_TASKS_PER_NODE must be a "),
        (
            {"SLURM_STEP_NODELIST": "n[8-10]"},
            f"{TOGETHER}'n[8-10]' with 3 nodes, 4 tasks on 2 in ",
        ),
        (
            {"SLURM_STEP_NUM_TASKS": "5"},
            f"{TOGETHER}'n[8-9]' with 2 nodes, 4 tasks on 2 in SLURM_STEP_TASKS_PER_"
            "NODE='2(x2)', SLURM_STEP_NUM_TASKS=5, SLURM_PROCID=2. Start the program ",
        ),
        (
            {"SLURM_STEP_NUM_TASKS": "0", "SLURM_STEP_TASKS_PER_NODE": "0(x2)"},
            TOGETHER,
        ),
        ({"SLURM_PROCID": "4"}, TOGETHER),
        (
            {"SLURM_STEP_NODELIST": "n[9,9]", **place(2, 1, 0, "n9")},
            "cluster.worker[2] has the same address as cluster.worker[0].",
        ),
    ],
)
def test_malformed_variables_are_refused(changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        resolve(**changes)


def ports_of(**changes):
    return {int(each.rpartition(":")[2]) for each in resolve(**changes).addresses}


def test_steps_and_jobs_beside_each_other_have_ports_of_their_own():
    seen = [
        ports_of(SLURM_JOB_ID=str(job), SLURM_STEP_ID=str(number))
        for job in range(1_000_000, 1_000_030)
        for number in range(16)
    ]

    assert len(set.union(*seen)) == sum(map(len, seen)) == 2 * 30 * 16


@pytest.mark.parametrize("job", ["0", "4294967295"])
@pytest.mark.parametrize("number", ["0", "4294967290"])
@pytest.mark.parametrize("tasks", [1, 33, 10_000])
def test_ports_are_neither_privileged_nor_for_outgoing_connections(job, number, tasks):
    ports = ports_of(
        SLURM_JOB_ID=job,
        SLURM_STEP_ID=number,
        SLURM_STEP_NUM_TASKS=str(tasks + 1),
        SLURM_STEP_TASKS_PER_NODE=f"{tasks},1",
        **place(0, 0, 0, "n8"),
    )

    assert min(ports) >= 13_000
    assert max(ports) < 32_000
    assert max(ports) - min(ports) == tasks - 1


def test_the_ports_can_be_chosen():
    assert ports_of(TFDIST_PORT_BASE="65534") == {65534, 65535}
    assert ports_of(TFDIST_PORT_BASE="") == {PORT, PORT + 1}


@pytest.mark.parametrize("given", ["0", "65535", "http", "9" * 5000])
def test_a_port_that_cannot_be_is_refused(given):
    message = (
        "^TFDIST_PORT_BASE must be a port from 1 to 65534, as the 2 tasks of a node "
        f"have the ports from it on. Received: TFDIST_PORT_BASE='{given}'. Use the same"
    )
    with pytest.raises(ValueError, match=message):
        resolve(TFDIST_PORT_BASE=given)


def test_each_start_of_a_step_has_a_run_id():
    assert resolve(SLURM_STEP_ID="3").run_id == "slurm-41.3"
    assert resolve(SLURM_RESTART_COUNT="1").run_id == "slurm-41.0.1"
