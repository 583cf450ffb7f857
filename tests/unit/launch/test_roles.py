"""Who is in a job, by hand."""

import pytest

from tfdist.cluster import Cluster, Task
from tfdist.launch.job import Job
from tfdist.launch.roles import clusters_of, name_of


def test_ranks_are_all_workers():
    clusters = clusters_of(Job(("/bin/true",), size=2), ["a:7", "b:8"])

    workers = ("a:7", "b:8")
    assert clusters == [
        Cluster(workers=workers, task=Task("worker", 0)),
        Cluster(workers=workers, task=Task("worker", 1)),
    ]


def test_parameter_servers_come_after_the_ranks():
    clusters = clusters_of(
        Job(("/bin/true",), workers=2, ps=2), ["c:1", "w:1", "w:2", "p:1", "p:2"]
    )

    assert {(cluster.chief, cluster.workers, cluster.ps) for cluster in clusters} == {
        (
            "c:1",
            ("w:1", "w:2"),
            ("p:1", "p:2"),
        )
    }
    assert [cluster.task for cluster in clusters] == [
        Task("chief", 0),
        Task("worker", 0),
        Task("worker", 1),
        Task("ps", 0),
        Task("ps", 1),
    ]
    assert [cluster.rank for cluster in clusters[:3]] == [0, 1, 2]


def test_nobody_knows_of_the_evaluator_but_itself():
    job = Job(("/bin/true",), workers=1, ps=1, evaluator=True)
    clusters = clusters_of(job, ["c:1", "w:1", "p:1", "e:1"])

    assert [str(cluster.task) for cluster in clusters] == [
        *("chief 0", "worker 0", "ps 0"),
        "evaluator 0",
    ]
    assert {tuple(cluster.jobs) for cluster in clusters} == {("chief", "worker", "ps")}


@pytest.mark.parametrize(
    ("task", "name"),
    [
        (None, "rank 4"),
        (Task("chief", 0), "chief"),
        (Task("worker", 1), "worker 1"),
        (Task("ps", 0), "ps 0"),
    ],
)
def test_names(task, name):
    assert name_of(4, task) == name
