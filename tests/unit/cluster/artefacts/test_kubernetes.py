"""What the manifests set in each pod is read back as the cluster."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster import Cluster
from tfdist.cluster.address import split_address
from tfdist.cluster.artefacts.formats import format_artefact
from tfdist.cluster.artefacts.kubernetes import kubernetes_manifests
from tfdist.cluster.artefacts.program import Program
from tfdist.cluster.resolvers import KubernetesResolver

# `tests/conftest.py` hides from the garbage collector what Hypothesis looks for there.
pytestmark = pytest.mark.filterwarnings("ignore:It looks like `register_random`")

PROGRAM = Program("mine", "python train.py --epochs 3", "registry/train:1")


@settings(deadline=None, derandomize=True, database=None, max_examples=40)
@given(st.data())
def test_a_cluster_survives_the_round_trip(hosts, on_hosts, data):
    cluster = on_hosts(data.draw(hosts), data.draw(st.integers(1, 65_531)))
    port = split_address(cluster.workers[0])[1]

    text = format_artefact(cluster, "kubernetes", PROGRAM)

    _, job = yaml.safe_load_all(text)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    env = {each["name"]: each["value"] for each in container["env"]}
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == cluster.size
    for index in range(cluster.size):
        seen = KubernetesResolver().resolve(env | {"JOB_COMPLETION_INDEX": str(index)})
        assert (seen.rank, seen.size) == (index, cluster.size)
        assert seen.workers == tuple(
            f"mine-{pod}.mine:{port}" for pod in range(cluster.size)
        )


def test_pods_find_each_other():
    service, job = kubernetes_manifests(Cluster(workers=("a:1", "b:1")), PROGRAM)
    pods = job["spec"]["template"]["spec"]

    assert job["spec"]["completionMode"] == "Indexed"
    # https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pods["subdomain"] == service["metadata"]["name"]
    assert pods["containers"][0]["command"] == ["python", "train.py", "--epochs", "3"]
    assert pods["containers"][0]["image"] == "registry/train:1"


def test_other_jobs_are_refused():
    with pytest.raises(ValueError, match="^--to kubernetes holds workers only"):
        kubernetes_manifests(Cluster(workers=("a:1",), ps=("p:1",)), PROGRAM)
