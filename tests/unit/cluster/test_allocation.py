import pytest

from tfdist.cluster.allocation import allocated_hosts, allocated_pods
from tfdist.cluster.host_slots import HostSlots

# Of a script of `sbatch --nodes=3 --ntasks=5`, as Slurm 22.05 sets them.
ENV = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[8-10]",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
    "SLURM_NTASKS": "5",
}


def test_the_script_of_a_job_sees_its_hosts():
    hosts = (HostSlots("n8", 2), HostSlots("n9", 2), HostSlots("n10", 1))

    assert allocated_hosts(ENV) == hosts
    # `salloc` starts its shell as a step with one task on some clusters.
    assert allocated_hosts(ENV | {"SLURM_STEP_NUM_TASKS": "1"}) == hosts


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"SLURM_JOB_NODELIST": "n8"},
        {"SLURM_TASKS_PER_NODE": "2"},
        ENV | {"SLURM_STEP_NUM_TASKS": "5"},
    ],
)
def test_elsewhere_there_are_none(env):
    assert allocated_hosts(env) is None


def test_the_environment_is_that_of_the_process(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "3")

    assert allocated_hosts() == (HostSlots("n1", 3),)


def test_variables_that_contradict_each_other_are_refused():
    message = (
        r"^SLURM_JOB_NODELIST and SLURM_TASKS_PER_NODE do not go together. "
        r"Received: 'n\[8-10\]' with 3 nodes, '2' with 1. Do not change"
    )
    with pytest.raises(ValueError, match=message):
        allocated_hosts(ENV | {"SLURM_TASKS_PER_NODE": "2"})


# What the pod template of an indexed Job sets, and Kubernetes in the second pod.
POD = {
    "TFDIST_JOB_NAME": "train",
    "TFDIST_SERVICE": "peers",
    "TFDIST_WORKERS": "2",
    "JOB_COMPLETION_INDEX": "1",
}


def test_a_pod_sees_the_others():
    pods = allocated_pods(POD)

    assert pods.workers == ("train-0.peers:2222", "train-1.peers:2222")
    assert pods.task.index == 1


@pytest.mark.parametrize("env", [{}, ENV, POD | {"TFDIST_RUN_ID": "5f"}])
def test_elsewhere_there_are_no_pods(env):
    assert allocated_pods(env) is None


def test_a_wrong_pod_template_is_an_error(monkeypatch):
    for name, value in POD.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TFDIST_WORKERS", "two")

    with pytest.raises(ValueError, match="^TFDIST_WORKERS must be a whole number"):
        allocated_pods()
