import pytest

from tfdist.cluster.model import Cluster, Task
from tfdist.cluster.resolvers import SlurmResolver

# What Slurm 22.05 gave the batch script of a job with two tasks on each of two nodes.
BATCH = {
    "SLURMD_NODENAME": "n8",
    "SLURM_CLUSTER_NAME": "try",
    "SLURM_CPUS_ON_NODE": "2",
    "SLURM_GTIDS": "0",
    "SLURM_JOBID": "41",
    "SLURM_JOB_CPUS_PER_NODE": "2(x2)",
    "SLURM_JOB_ID": "41",
    "SLURM_JOB_NAME": "job.sh",
    "SLURM_JOB_NODELIST": "n[8-9]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "0",
    "SLURM_NODELIST": "n[8-9]",
    "SLURM_NPROCS": "4",
    "SLURM_NTASKS": "4",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_PROCID": "0",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_TASK_PID": "9743",
}
# And what its `srun` added to it for the third task.
STEP = BATCH | {
    "SLURMD_NODENAME": "n9",
    "SLURM_DISTRIBUTION": "block",
    "SLURM_GTIDS": "2,3",
    "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "2",
    "SLURM_STEPID": "0",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_LAUNCHER_PORT": "40109",
    "SLURM_STEP_NODELIST": "n[8-9]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_TASK_PID": "9773",
}
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
    return SlurmResolver().resolve(step(**changes))


def test_a_task_of_a_step_is_a_worker():
    cluster = SlurmResolver().resolve(STEP)

    assert SlurmResolver().recognises(STEP)
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
    assert not SlurmResolver().recognises(env)


@pytest.mark.parametrize(
    "launcher",
    [
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3"},
        {"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"},
        {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "4"},
        {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "8"},
    ],
)
def test_the_ranks_of_a_launcher_within_the_step_are_not_slurms(launcher):
    assert not SlurmResolver().recognises(STEP | launcher)


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
    assert SlurmResolver().recognises(STEP | mpi)


def test_hosts_keep_slurms_order():
    changes = place(2, 2, 0, "n10") | {
        "SLURM_STEP_NODELIST": "n[8-10]",
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
    }

    assert resolve(**changes).addresses == (f"n8:{PORT}", f"n9:{PORT}", f"n10:{PORT}")


@pytest.mark.parametrize(
    ("distribution", "nodes"),
    [
        (None, "88899"),
        ("", "88899"),
        ("*", "88899"),
        ("block", "88899"),
        ("block:cyclic", "88899"),
        ("Block,NoPack", "88899"),
        ("pack", "88899"),
        ("cyclic", "89898"),
        ("cyclic:block", "89898"),
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


@pytest.mark.parametrize("distribution", ["arbitrary", "unknown", "ring"])
def test_a_distribution_that_tells_no_nodes_is_refused(distribution):
    message = (
        "^SLURM_DISTRIBUTION does not give the node of each task. Received: "
        f"SLURM_DISTRIBUTION='{distribution}'. Start the step with `srun --distribution"
    )
    with pytest.raises(ValueError, match=message):
        resolve(SLURM_DISTRIBUTION=distribution)


def test_on_one_node_every_distribution_is_the_same():
    cluster = resolve(
        SLURM_DISTRIBUTION="arbitrary",
        SLURM_STEP_NODELIST="n9",
        SLURM_STEP_TASKS_PER_NODE="4",
        **place(2, 0, 2, "n9"),
    )

    assert cluster.addresses == tuple(f"n9:{PORT + i}" for i in range(4))


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_NODEID": "0"},
        {"SLURM_LOCALID": "1"},
        {"SLURM_LOCALID": "x"},
        {"SLURMD_NODENAME": "n8"},
        {"SLURM_DISTRIBUTION": "cyclic"},
        {"SLURM_STEP_NODELIST": "n[9,8]"},
        {"SLURM_PROCID": "3"},
    ],
)
def test_a_process_that_is_not_where_it_would_be_is_refused(changes):
    told = " ".join(
        f"{name}={step(**changes)[name]}"
        for name in ("SLURM_NODEID", "SLURM_LOCALID", "SLURMD_NODENAME")
    )
    message = (
        "^The variables of `srun` give this process two places. "
        f"Received: {told}, but task .* has SLURM_NODEID=.* --distribution=block"
    )
    with pytest.raises(ValueError, match=message):
        resolve(**changes)


def test_two_places_are_named_in_full():
    with pytest.raises(ValueError, match=r"^The variables of `srun`") as error:
        resolve(SLURM_DISTRIBUTION="cyclic")

    assert str(error.value).partition("Received: ")[2] == (
        "SLURM_NODEID=1 SLURM_LOCALID=0 SLURMD_NODENAME=n9, but task 2 of 2(x2) on "
        "n[8-9], distributed as 'cyclic', has SLURM_NODEID=0 SLURM_LOCALID=1 "
        "SLURMD_NODENAME=n8. Start the step with `srun --distribution=block`; in a "
        "script of `sbatch` that was called in a step, unset SLURM_STEP_ID."
    )


def test_without_the_variables_of_the_place_the_rank_decides():
    names = ("SLURM_NODEID", "SLURM_LOCALID", "SLURMD_NODENAME")

    assert resolve(**dict.fromkeys(names)).address == f"n9:{PORT}"


# A heterogeneous step of two tasks on one node and one on each of two others. Slurm
# tells the distribution of a component, and sorts the nodes of all.
HETEROGENEOUS = {
    "SLURM_HET_SIZE": "2",
    "SLURM_DISTRIBUTION": "cyclic",
    "SLURM_STEP_NODELIST": "n[8-10]",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2,1(x2)",
}


def test_the_components_of_a_heterogeneous_step_follow_each_other():
    cluster = resolve(**HETEROGENEOUS, **place(3, 2, 0, "n10"))

    hosts = [address.partition(":")[0] for address in cluster.addresses]
    assert hosts == ["n8", "n8", "n9", "n10"]


def test_components_in_another_order_than_their_nodes_are_refused():
    message = (
        "Received: SLURM_NODEID=0 SLURM_LOCALID=0 SLURMD_NODENAME=n10, but task 0 .* "
        "Give the components of the job in the order of their nodes, .*--het-group=0"
    )
    with pytest.raises(ValueError, match=message):
        resolve(**HETEROGENEOUS, **place(0, 0, 0, "n10"))


PLANE = {"SLURM_DISTRIBUTION": "plane", "SLURM_DIST_PLANESIZE": "2"}


@pytest.mark.parametrize(
    "name",
    [
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_PROCID",
        "SLURM_DIST_PLANESIZE",
    ],
)
@pytest.mark.parametrize("value", ["two", "-1", "1.5", "²"])
def test_a_malformed_number_is_refused(name, value):
    message = f"^{name} must be a whole number, as `srun` sets it. Received: {name}='"
    with pytest.raises(ValueError, match=message):
        resolve(**{**PLANE, name: value})


def test_a_missing_size_of_planes_is_refused():
    message = "^SLURM_DIST_PLANESIZE must be .* Received: no SLURM_DIST_PLANESIZE. St"
    with pytest.raises(ValueError, match=message):
        resolve(**PLANE | {"SLURM_DIST_PLANESIZE": None})


@pytest.mark.parametrize("name", ["SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"])
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_list_is_refused(name, value):
    message = (
        f"^{name} must be set, as `srun` does. Received: none, in step 0 with 4 tasks. "
        "Start the program with `srun`"
    )
    with pytest.raises(ValueError, match=message):
        resolve(**{name: value})


def test_malformed_lists_are_refused_by_their_names():
    with pytest.raises(ValueError, match="^SLURM_STEP_NODELIST is not a list of hosts"):
        resolve(SLURM_STEP_NODELIST="n[8-9")
    with pytest.raises(ValueError, match="^SLURM_STEP_TASKS_PER_NODE must be a list"):
        resolve(SLURM_STEP_TASKS_PER_NODE="2(3)")


@pytest.mark.parametrize(
    ("changes", "received"),
    [
        (
            {"SLURM_STEP_NODELIST": "n[8-10]"},
            "'n[8-10]' with 3 nodes, '2(x2)' with 4 tasks on 2, and 4 tasks. Start",
        ),
        (
            {"SLURM_STEP_TASKS_PER_NODE": "2,1"},
            "'n[8-9]' with 2 nodes, '2,1' with 3 tasks on 2, and 4 tasks. Start",
        ),
        (
            {"SLURM_STEP_NUM_TASKS": "5"},
            "'n[8-9]' with 2 nodes, '2(x2)' with 4 tasks on 2, and 5 tasks. Start",
        ),
        (
            {"SLURM_STEP_NUM_TASKS": "0", "SLURM_STEP_TASKS_PER_NODE": "0(x2)"},
            "'n[8-9]' with 2 nodes, '0(x2)' with 0 tasks on 2, and 0 tasks. Start",
        ),
    ],
)
def test_lists_that_do_not_go_together_are_refused(changes, received):
    with pytest.raises(ValueError, match="^SLURM_STEP_NODELIST, SLURM_") as error:
        resolve(**changes)

    assert f"do not go together. Received: {received}" in str(error.value)


def test_a_rank_that_nobody_has_is_refused():
    message = (
        "^SLURM_PROCID must be below SLURM_STEP_NUM_TASKS. "
        "Received: SLURM_PROCID=4, SLURM_STEP_NUM_TASKS=4. Start the program"
    )
    with pytest.raises(ValueError, match=message):
        resolve(SLURM_PROCID="4")


def test_a_node_that_stands_there_twice_is_refused():
    with pytest.raises(ValueError, match="has the same address as"):
        resolve(SLURM_STEP_NODELIST="n[9,9]", **place(2, 1, 0, "n9"))


def ports_of(**changes):
    return {int(each.rpartition(":")[2]) for each in resolve(**changes).addresses}


def test_steps_and_jobs_beside_each_other_have_ports_of_their_own():
    seen = [
        ports_of(SLURM_JOB_ID=str(job), SLURM_STEP_ID=str(number))
        for job in range(1_000_000, 1_000_030)
        for number in range(16)
    ]

    assert len(set.union(*seen)) == sum(map(len, seen)) == 2 * 30 * 16


@pytest.mark.parametrize("job", ["0", "1", "4294967295", "67108863"])
@pytest.mark.parametrize("number", ["0", "4294967290"])
@pytest.mark.parametrize("tasks", [1, 33, 128, 10_000])
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


@pytest.mark.parametrize(("given", "first"), [("2222", 2222), ("65534", 65534)])
def test_the_ports_can_be_chosen(given, first):
    assert ports_of(TFDIST_PORT_BASE=given) == {first, first + 1}


def test_an_empty_port_is_none():
    assert ports_of(TFDIST_PORT_BASE="") == {PORT, PORT + 1}


@pytest.mark.parametrize("given", ["0", "65535", "-1", "http", " 1", "²", "9" * 5000])
def test_a_port_that_cannot_be_is_refused(given):
    message = (
        "^TFDIST_PORT_BASE must be a port from 1 to 65534, as the 2 tasks of a node "
        f"have the ports from it on. Received: TFDIST_PORT_BASE='{given}'. Use the same"
    )
    with pytest.raises(ValueError, match=message):
        resolve(TFDIST_PORT_BASE=given)


@pytest.mark.parametrize(
    ("changes", "run_id"),
    [
        ({}, "slurm-41.0"),
        ({"SLURM_STEP_ID": "3"}, "slurm-41.3"),
        ({"SLURM_RESTART_COUNT": "1"}, "slurm-41.0.1"),
    ],
)
def test_a_step_is_told_from_all_others(changes, run_id):
    assert resolve(**changes).run_id == run_id
