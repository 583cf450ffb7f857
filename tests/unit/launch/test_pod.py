"""What each pod starts of a job, by hand."""

import json

import pytest

from tfdist.cluster import Cluster, Task, detect
from tfdist.launch.job import Job
from tfdist.launch.pod import Pods, plan_in_pod
from tfdist.launch.restarts import Restarts

ADDRESSES = ("train-0.peers:2222", "train-1.peers:2222")


def specs_of(pod, *, size=2, cores=(0, 1), addresses=ADDRESSES):
    pods = Pods(Cluster(workers=addresses, task=Task("worker", pod)))
    return plan_in_pod(Job(("/bin/prog",), size=size), pods, cores=cores, environ={})


def test_pods_have_one_job_and_each_its_ranks():
    specs = [*specs_of(0), *specs_of(1)]

    assert [spec.rank for spec in specs] == [0, 1, 2, 3]
    assert [spec.tag for spec in specs] == ["0", "1", "2", "3"]
    clusters = [detect(spec.env) for spec in specs]
    assert [
        (one.rank, one.size, one.local_rank, one.local_size) for one in clusters
    ] == [
        (0, 4, 0, 2),
        (1, 4, 1, 2),
        (2, 4, 0, 2),
        (3, 4, 1, 2),
    ]
    assert {one.workers for one in clusters} == {
        (
            *("train-0.peers:2222", "train-0.peers:2223"),
            *("train-1.peers:2222", "train-1.peers:2223"),
        )
    }
    assert len({one.run_id for one in clusters}) == 1


def test_each_pod_shares_its_own_cores():
    assert [spec.cores for spec in specs_of(1, cores=(4, 5, 6, 7))] == [(4, 5), (6, 7)]


def test_the_environment_is_that_of_the_launcher(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    pods = Pods(Cluster(workers=ADDRESSES))

    [spec] = plan_in_pod(Job(("/bin/prog",), size=1), pods)

    assert "OMP_NUM_THREADS" not in spec.env
    assert json.loads(spec.env["TF_CONFIG"])["task"] == {"type": "worker", "index": 0}


def test_ports_must_reach():
    with pytest.raises(
        ValueError, match="port leaves too few ports for the slots of a."
    ):
        specs_of(0, addresses=("a:65535", "b:65535"))


@pytest.mark.parametrize(
    ("job", "restarts", "message"),
    [
        (
            Job(("/bin/prog",), workers=2, ps=1),
            Restarts(),
            "^Each pod of a Kubernetes job starts ranks that are all alike, joined by "
            "TensorFlow. Received: parameter servers. Give -np, or unset",
        ),
        (
            Job(("/bin/prog",), size=2, collective="horovod"),
            Restarts(),
            "Received: --collective horovod. Give -np",
        ),
        (
            Job(("/bin/prog",), size=2),
            Restarts(3),
            "^--max-restarts starts all processes again, and those of other pods are "
            "not this one's. Received: --max-restarts 3. Let Kubernetes",
        ),
    ],
)
def test_what_no_pod_can_do_alone_is_refused(job, restarts, message):
    pods = Pods(Cluster(workers=ADDRESSES))

    pods.check(Job(("/bin/prog",), size=2), Restarts())
    with pytest.raises(ValueError, match=message):
        pods.check(job, restarts)
