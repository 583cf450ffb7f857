"""The TF_CONFIG that the operator makes of a TFJob is the cluster with its names."""

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster.address import split_address
from tfdist.cluster.artefacts.formats import format_artefact
from tfdist.cluster.artefacts.program import Program
from tfdist.cluster.resolvers import TFConfigResolver

# `tests/conftest.py` hides from the garbage collector what Hypothesis looks for there.
pytestmark = pytest.mark.filterwarnings("ignore:It looks like `register_random`")

PROGRAM = Program("mine", image="registry/train:1")


def tf_config_of_operator(job, task, index):
    """Return what version 1.9 of the training operator sets in a pod.

    As genTFConfigJSONStr in pkg/controller.v1/tensorflow/tensorflow.go makes it.
    """
    name = job["metadata"]["name"]
    cluster = {}
    for kind, replicas in job["spec"]["tfReplicaSpecs"].items():
        (container,) = replicas["template"]["spec"]["containers"]
        (port,) = [
            port["containerPort"]
            for port in container["ports"]
            if (container["name"], port["name"]) == ("tensorflow", "tfjob-port")
        ]
        cluster[kind.lower()] = [
            f"{name}-{kind.lower()}-{pod}.default.svc:{port}"
            for pod in range(replicas["replicas"])
        ]
    described = {"type": task, "index": index}
    return json.dumps({"cluster": cluster, "task": described, "environment": "cloud"})


@settings(deadline=None, derandomize=True, database=None, max_examples=40)
@given(st.data())
def test_a_cluster_survives_the_round_trip(clusters, data):
    cluster = data.draw(clusters)

    text = format_artefact(cluster, "tfjob", PROGRAM)

    text_of_task = tf_config_of_operator(
        yaml.safe_load(text), cluster.task.type, cluster.task.index
    )
    seen = TFConfigResolver().resolve({"TF_CONFIG": text_of_task})
    assert seen.task == cluster.task
    assert seen.jobs == {
        job: tuple(
            f"mine-{job}-{pod}.default.svc:{split_address(addresses[0])[1]}"
            for pod in range(len(addresses))
        )
        for job, addresses in cluster.jobs.items()
    }


@settings(deadline=None, derandomize=True, database=None, max_examples=20)
@given(st.data())
def test_a_failure_is_not_started_again(clusters, data):
    text = format_artefact(data.draw(clusters), "tfjob", PROGRAM)
    job = yaml.safe_load(text)

    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "TFJob")
    for replicas in job["spec"]["tfReplicaSpecs"].values():
        assert replicas["restartPolicy"] == "Never"
        assert replicas["template"]["spec"]["containers"][0]["command"] == [
            "python",
            "train.py",
        ]
