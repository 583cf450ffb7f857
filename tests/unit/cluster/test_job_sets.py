"""Files for JobSet and Kubeflow Trainer: valid by their CRDs, and read back by pods."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from tfdist.cluster import Cluster
from tfdist.cluster.detect import explain
from tfdist.cluster.job_files import Program, format_job_file

CRDS = Path(__file__).with_name("crds")
THREE = Cluster(workers=("a:7000", "b:7000", "c:7000"))
PROGRAM = Program("mine", "python train.py --epochs 3", "registry/train:1", 3, 2)


def closed(schema):
    """Return a schema whose objects have no other fields, which Kubernetes drops."""
    if not isinstance(schema, dict):
        return [*map(closed, schema)] if isinstance(schema, list) else schema
    schema = {name: closed(value) for name, value in schema.items()}
    if schema.pop("x-kubernetes-int-or-string", False):
        return {"type": ["integer", "string"]}
    is_object = schema.get("type") == "object" and "properties" in schema
    return {"additionalProperties": False} | schema if is_object else schema


def documents_of(form, program=PROGRAM):
    """Return the documents of a file, by kind, each valid by its CRD."""
    found = {}
    for document in yaml.safe_load_all(format_job_file(THREE, form, program)):
        crd = json.loads((CRDS / f"{document['kind']}.json").read_text())
        assert document["apiVersion"] == crd.pop("apiVersion")
        schema = closed(crd)
        # Kubernetes itself describes what all objects have in it.
        schema["properties"]["metadata"] = {"type": "object", "required": ["name"]}
        jsonschema.Draft202012Validator(schema).validate(document)
        found[document["kind"]] = document
    return found


def assert_pods_find_each_other(env, job, service):
    """Compare what pods read with the names that JobSet gives them."""
    env = {each["name"]: each["value"] for each in env}
    for index in range(3):
        seen = explain(env | {"JOB_COMPLETION_INDEX": str(index)})
        assert seen.resolver == "kubernetes"
        assert (seen.cluster.rank, seen.cluster.size) == (index, 3)
        assert seen.cluster.workers == tuple(
            f"{job}-{pod}.{service}:7000" for pod in range(3)
        )


# https://jobset.sigs.k8s.io/docs/concepts: a pod is called
# <jobset>-<replicated job>-<number of the job>-<completion index>.<subdomain>.
def test_a_cluster_survives_jobset():
    spec = documents_of("jobset")["JobSet"]["spec"]

    (replicated,) = spec["replicatedJobs"]
    job = replicated["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    assert (job["completions"], job["parallelism"], replicated["replicas"]) == (3, 3, 1)
    assert (job["completionMode"], job["backoffLimit"]) == ("Indexed", 0)
    assert container["command"] == ["python", "train.py", "--epochs", "3"]
    assert container["resources"] == {"limits": {"cpu": 3, "nvidia.com/gpu": 2}}
    name = f"mine-{replicated['name']}-0"
    assert_pods_find_each_other(container["env"], name, spec["network"]["subdomain"])


def test_a_cluster_survives_trainjob():
    found = documents_of("trainjob")

    runtime, train = (found[kind] for kind in ("TrainingRuntime", "TrainJob"))
    spec = train["spec"]
    name = runtime["metadata"]["name"]
    assert spec["runtimeRef"] == {"kind": "TrainingRuntime", "name": name}
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    labels = replicated["template"]["metadata"]["labels"]
    assert labels == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert container["name"] == replicated["name"] == "node"
    # Trainer gives the JobSet the name of the TrainJob, which is also its subdomain.
    trainer = spec["trainer"]
    assert (trainer["numNodes"], runtime["spec"]["mlPolicy"]) == (3, {"numNodes": 3})
    assert trainer["command"] == ["python", "train.py", "--epochs", "3"]
    assert trainer["resourcesPerNode"]["limits"] == {"cpu": 3, "nvidia.com/gpu": 2}
    assert_pods_find_each_other(trainer["env"], "mine-node-0", "mine")


@pytest.mark.parametrize("form", ["jobset", "trainjob"])
def test_a_file_without_resources_is_valid(form):
    assert documents_of(form, Program(image="x"))
