"""Each file is read back, as its scheduler would read it, to the same cluster."""

import json
import re
import subprocess

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster import Cluster
from tfdist.cluster.address import split_address
from tfdist.cluster.hosts.slots import number_ports, parse_hostfile
from tfdist.cluster.resolvers.kubernetes import KubernetesResolver
from tfdist.cluster.resolvers.slurm import SlurmResolver
from tfdist.cluster.templates import JOB_FILES, Program, format_job_file
from tfdist.cluster.tf_config import loads

# `tests/conftest.py` hides from the garbage collector what Hypothesis looks for there.
pytestmark = pytest.mark.filterwarnings("ignore:It looks like `register_random`")

FORTY = settings(deadline=None, derandomize=True, database=None, max_examples=40)
PROGRAM = Program("mine", "python train.py --epochs 3", "registry/train:1")
TWO = Cluster(workers=("a:2222", "b:2222"))


@FORTY
@given(st.data())
def test_a_hostfile_survives_the_round_trip(hosts, on_hosts, data):
    cluster = on_hosts(data.draw(hosts))

    text = format_job_file(cluster, "hostfile", Program())

    assert number_ports(parse_hostfile(text), 2222) == cluster.workers


@pytest.mark.parametrize("form", JOB_FILES)
def test_each_holds_what_it_says(form):
    program = Program("some-name", "some command", "some/image")

    text = format_job_file(TWO, form, program)

    assert text.endswith("\n")
    assert ("some-name" in text) == ("name" in JOB_FILES[form])
    assert ("some/image" in text) == ("image" in JOB_FILES[form])
    assert ("command" in text) == ("command" in JOB_FILES[form])


@pytest.mark.parametrize("form", ["kubernetes", "tfjob", "mpijob", "compose"])
def test_containers_need_an_image(form):
    message = (
        f"--image must name the image of the containers of --to {form}. "
        "Received: no --image. Give an image"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        format_job_file(TWO, form, Program())


def test_another_form_is_refused():
    message = (
        "^form must be one of hostfile, sbatch, kubernetes, tfjob, mpijob, compose. "
        "Received: form='helm'. Use sbatch"
    )
    with pytest.raises(ValueError, match=message):
        format_job_file(TWO, "helm", Program())


def variables_of_task(script, rank):
    """Return what `srun` sets in a task of the job that a script asks for."""
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(.+)$", script, re.MULTILINE))
    nodes, slots = int(options["nodes"]), options["ntasks-per-node"]
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_NODEID": str(rank // int(slots)),
        "SLURM_LOCALID": str(rank % int(slots)),
        "SLURM_STEP_NUM_TASKS": str(nodes * int(slots)),
        "SLURM_STEP_NODELIST": options["nodelist"],
        "SLURM_STEP_TASKS_PER_NODE": f"{slots}(x{nodes})",
        "SLURM_DISTRIBUTION": re.search("--distribution=([a-z]+)", script)[1],
        **dict(re.findall(r"^export (\w+)=(\d+)$", script, re.MULTILINE)),
    }


@FORTY
@given(st.data())
def test_a_cluster_survives_sbatch(equal_hosts, on_hosts, data):
    cluster = on_hosts(data.draw(equal_hosts), data.draw(st.integers(1, 65_531)))

    script = format_job_file(cluster, "sbatch", Program())

    for rank in range(cluster.size):
        seen = SlurmResolver().resolve(variables_of_task(script, rank))
        assert (seen.workers, seen.rank) == (cluster.workers, rank)


def test_the_command_is_for_the_shell(tmp_path):
    cluster = Cluster(workers=("a:1", "b:1"))
    script = format_job_file(
        cluster, "sbatch", Program("mine", "sh -c 'echo $1' x \"$WORD\"")
    )
    (tmp_path / "srun").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    done = subprocess.run(
        ["bash"],
        input=script,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "WORD": "two words"},
    )

    assert "#SBATCH --job-name=mine\n" in script
    assert done.stdout == "two words\n"


@pytest.mark.parametrize(
    ("workers", "message"),
    [
        (
            ("a:1", "[fe80::1]:1"),
            "--to sbatch has hosts by the names that Slurm gives them. "
            "Received: [fe80::1]. Use the",
        ),
        (("a$b:1",), "--to sbatch has hosts by the names that Slurm gives them. Recei"),
        (
            ("a:1", "b:2"),
            "--to sbatch counts the ports up on each host, from one that is the same "
            "on all. Received: a:1,b:2. Give the hosts with -H",
        ),
        (
            ("a:1", "a:3"),
            "--to sbatch counts the ports up on each host, from one that ",
        ),
        (
            ("a:1", "a:2", "b:1"),
            "--to sbatch has one number of workers for all hosts. ",
        ),
    ],
)
def test_what_sbatch_refuses(workers, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        format_job_file(Cluster(workers=workers), "sbatch", Program())


@FORTY
@given(st.data())
def test_a_cluster_survives_kubernetes(hosts, on_hosts, data):
    cluster = on_hosts(data.draw(hosts), data.draw(st.integers(1, 65_531)))
    port = split_address(cluster.workers[0])[1]

    text = format_job_file(cluster, "kubernetes", PROGRAM)

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
    service, job = yaml.safe_load_all(format_job_file(TWO, "kubernetes", PROGRAM))
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
        format_job_file(Cluster(workers=("a:1",), ps=("p:1",)), "kubernetes", PROGRAM)


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


@FORTY
@given(st.data())
def test_a_cluster_survives_tfjob(clusters, data):
    cluster = data.draw(clusters)

    text = format_job_file(cluster, "tfjob", PROGRAM)

    text_of_task = tf_config_of_operator(
        yaml.safe_load(text), cluster.task.type, cluster.task.index
    )
    seen = loads(text_of_task)
    assert seen.task == cluster.task
    assert seen.jobs == {
        job: tuple(
            f"mine-{job}-{pod}.default.svc:{split_address(addresses[0])[1]}"
            for pod in range(len(addresses))
        )
        for job, addresses in cluster.jobs.items()
    }


@FORTY
@given(st.data())
def test_a_failure_is_not_started_again(clusters, data):
    text = format_job_file(data.draw(clusters), "tfjob", PROGRAM)
    job = yaml.safe_load(text)

    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "TFJob")
    for replicas in job["spec"]["tfReplicaSpecs"].values():
        assert replicas["restartPolicy"] == "Never"
        assert replicas["template"]["spec"]["containers"][0]["command"] == [
            "python",
            "train.py",
            "--epochs",
            "3",
        ]


@FORTY
@given(st.data())
def test_hosts_and_slots_survive(equal_hosts, on_hosts, data):
    hosts = data.draw(equal_hosts)

    text = format_job_file(on_hosts(hosts), "mpijob", PROGRAM)

    job = yaml.safe_load(text)
    replicas = job["spec"]["mpiReplicaSpecs"]
    (launcher,) = replicas["Launcher"]["template"]["spec"]["containers"]
    command = launcher["command"]
    assert replicas["Launcher"]["replicas"] == 1
    assert replicas["Worker"]["replicas"] == len(hosts)
    assert job["spec"]["slotsPerWorker"] == hosts[0].slots
    assert command[command.index("-np") + 1] == str(len(hosts) * hosts[0].slots)
    assert command[-4:] == ["python", "train.py", "--epochs", "3"]


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (Cluster(workers=("a:1", "a:2", "b:1")), "^--to mpijob has one number of work"),
        (
            Cluster(workers=("a:1", "b:2", "a:2")),
            "^--to mpijob gives ranks to one host",
        ),
        (Cluster(chief="c:1", workers=("a:1",)), "^--to mpijob holds workers only"),
    ],
)
def test_what_mpijob_refuses(cluster, message):
    with pytest.raises(ValueError, match=message):
        format_job_file(cluster, "mpijob", PROGRAM)


@FORTY
@given(st.data())
def test_a_cluster_survives_compose(clusters, data):
    cluster = data.draw(clusters)

    text = format_job_file(cluster, "compose", Program(image="registry/train:1"))

    services = yaml.safe_load(text)["services"]
    seen = {
        name: loads(service["environment"]["TF_CONFIG"])
        for name, service in services.items()
    }
    assert len(services) == sum(map(len, cluster.jobs.values()))
    for name, inside in seen.items():
        # Where the others look for it is where it is.
        assert split_address(inside.address)[0] == name
        assert name == f"{inside.task.type}-{inside.task.index}"
        assert ports_of(inside) == ports_of(cluster)


def ports_of(cluster):
    return {
        job: [split_address(address)[1] for address in addresses]
        for job, addresses in cluster.jobs.items()
    }


def test_the_command_is_taken_word_by_word():
    program = Program("mine", "python train.py --dir '$HOME/a b'", "registry/train:1")

    file = yaml.safe_load(
        format_job_file(Cluster(workers=("a:1",)), "compose", program)
    )

    assert file["name"] == "mine"
    assert file["services"]["worker-0"]["image"] == "registry/train:1"
    # Compose makes a single $ of two.
    assert file["services"]["worker-0"]["command"] == [
        "python",
        "train.py",
        "--dir",
        "$$HOME/a b",
    ]


@pytest.mark.parametrize("name", ["a", "a1", "my-job-2", "a" * 50])
def test_names(name):
    assert Program(name=name).name == name


NAME = "--name must begin with a small letter and have at most 50 small letters, digits"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"name": ""},
            f"{NAME} and hyphens. Received: --name ''. Use one such as trai",
        ),
        ({"name": "Train"}, NAME),
        ({"name": "1a"}, NAME),
        ({"name": "a-"}, NAME),
        ({"name": "a" * 51}, NAME),
        ({"name": "a\n"}, NAME),
        (
            {"image": "a b"},
            "--image must be a container image. Received: --image 'a b'. Write it as",
        ),
        ({"image": "a\0"}, "--image must be a container image. Received: --image 'a"),
        (
            {"command": ""},
            "--command must be a line that a shell can run. Received: --command ''. Cl",
        ),
        (
            {"command": "a 'b"},
            "--command must be a line that a shell can run. Received",
        ),
        (
            {"command": "a\nb"},
            "--command must be a line that a shell can run. Received",
        ),
    ],
)
def test_what_program_refuses(parts, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        Program(**parts)
