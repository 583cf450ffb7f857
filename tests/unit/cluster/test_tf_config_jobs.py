import pytest

from tfdist.cluster.tf_config_jobs import ONLY_SPARSE, job_type, read_jobs


def test_right_jobs():
    read = read_jobs({"master": ["c:1"], "worker": ["a:1"], "ps": [], "evaluator": []})

    assert read.jobs == {"chief": ("c:1",), "worker": ("a:1",)}
    assert read.findings == ()
    assert read.is_sure


@pytest.mark.parametrize(
    ("cluster", "jobs", "is_sure"),
    [
        ({"workers": ["a:1"]}, {"worker": ("a:1",)}, True),
        ({"worker": "a:1,b:1"}, {"worker": ("a:1", "b:1")}, True),
        ({"chief": ["c:1", "d:1"]}, {"chief": ("c:1", "d:1")}, True),
        ({"chief": ["c:1"], "worker": []}, {"chief": ("c:1",)}, False),
        ({"worker": ["a:1", 2]}, {}, False),
        ({"worker": {"0": "a:1"}, "ps": ["p:1"]}, {"ps": ("p:1",)}, False),
        ({"gateway": ["g:1"]}, {}, True),
    ],
)
def test_one_mistake_and_what_was_meant(cluster, jobs, is_sure):
    read = read_jobs(cluster)

    assert read.jobs == jobs
    assert read.is_sure is is_sure
    assert len(read.findings) == 1


def test_a_string_of_several_chiefs_is_two_mistakes():
    first, second = read_jobs({"chief": "c:1,d:1"}).findings

    assert first.problem == "cluster.chief must be a list, also for a single address."
    assert second.message == (
        "cluster.chief has more than one address, but a cluster has one chief. "
        'Received: ["c:1", "d:1"]. Make the others workers.'
    )


def test_a_sparse_cluster_counts_only_beside_a_full_one():
    sparse = {"worker": {"0": "a:1"}}

    assert read_jobs({"sparseCluster": sparse}).findings == (ONLY_SPARSE,)
    assert read_jobs({"sparseCluster": sparse, "worker": ["a:1"]}).findings == ()


@pytest.mark.parametrize("job", ["worker", "", None, ["master"], 0])
def test_only_master_is_another_word(job):
    assert job_type("master") == "chief"
    assert job_type(job) == job
