"""The recipes for clusters set the variables that tfdist reads there.

That of Slurm is run in tests/distributed/test_slurm.py, but for a job's new start.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from page_blocks import blocks_of

from tfdist.cluster import detect
from tfdist.cluster.detect import explain
from tfdist.cluster.tf_config import findings

EXAMPLES = Path(__file__).parents[2] / "examples"
DOCKERFILE = (EXAMPLES / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def kubernetes():
    """The Service and the Job."""
    text = (EXAMPLES / "kubernetes" / "digits.yaml").read_text()
    service, job = yaml.safe_load_all(text)
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    return service, job


@pytest.fixture(scope="module")
def compose():
    """The services, by name."""
    text = (EXAMPLES / "compose" / "compose.yaml").read_text()
    return yaml.safe_load(text)["services"]


def pod_environment(job, index):
    """Return the variables of a pod, from the template and from Kubernetes."""
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    env = {each["name"]: each["value"] for each in container["env"]}
    return {**env, "JOB_COMPLETION_INDEX": str(index), "HOSTNAME": f"digits-{index}"}


def test_each_pod_finds_the_others_by_the_names_that_kubernetes_gives(kubernetes):
    service, job = kubernetes
    name, peers = job["metadata"]["name"], service["metadata"]["name"]
    size = job["spec"]["completions"]
    port = service["spec"]["ports"][0]["port"]

    for index in range(size):
        explanation = explain(pod_environment(job, index))

        assert explanation.resolver == "kubernetes"
        assert explanation.cluster.rank == index
        assert explanation.cluster.workers == tuple(
            f"{name}-{pod}.{peers}:{port}" for pod in range(size)
        )


def test_the_manifest_starts_all_pods_at_once_and_the_service_leads_to_them(kubernetes):
    service, job = kubernetes
    spec, template = job["spec"], job["spec"]["template"]
    (container,) = template["spec"]["containers"]
    (port,) = service["spec"]["ports"]

    assert spec["completionMode"] == "Indexed"
    assert spec["parallelism"] == spec["completions"] >= 2
    assert spec["backoffLimit"] == 0
    assert template["spec"]["restartPolicy"] == "Never"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert template["spec"]["subdomain"] == service["metadata"]["name"]
    assert container["ports"] == [{"containerPort": port["port"]}]
    # Kubernetes sets <NAME>_PORT and others for each Service of the namespace.
    assert not service["metadata"]["name"].startswith("tfdist")


def test_each_container_has_its_own_tf_config(compose):
    hosts = [f"{name}:2222" for name in compose]

    for index, service in enumerate(compose.values()):
        (text,) = service["environment"].values()
        cluster = detect(service["environment"])

        assert findings(text) == ()
        assert list(cluster.workers) == hosts
        assert cluster.rank == index


def test_the_image_is_built_from_existing_files(compose):
    for service in compose.values():
        folder = EXAMPLES / "compose" / service["build"]["context"]
        file = folder / service["build"]["dockerfile"]

        assert file.samefile(EXAMPLES / "Dockerfile")
    sources = re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.MULTILINE)
    (program,) = re.findall(r'^ENTRYPOINT \["python", "(.+)"\]$', DOCKERFILE, re.M)
    for name in (*" ".join(sources).split(), program):
        assert (EXAMPLES.parent / name).exists()


@pytest.mark.parametrize("options", [(), ("-euo", "pipefail")])
@pytest.mark.parametrize("code", [0, 3, 143])
def test_a_slurm_job_that_was_stopped_early_is_queued_again(code, options, tmp_path):
    (block,) = blocks_of("docs/restarts.md", "bash")
    programs = {"srun": f"exit {code}", "scontrol": f'echo "$@" >> {tmp_path / "said"}'}
    for name, script in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"

    done = subprocess.run(
        ["bash", *options, "-c", block.text],
        env={"PATH": path, "SLURM_JOB_ID": "7"},
        check=False,
    )

    said = (tmp_path / "said").read_text() if (tmp_path / "said").exists() else ""
    assert (done.returncode, said) == (code, "requeue 7\n" if code == 143 else "")
