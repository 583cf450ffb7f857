"""Each file is read back, as its scheduler would read it, to the same cluster."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml

from tfdist.cluster import Cluster, Task
from tfdist.cluster.address import split_address
from tfdist.cluster.hosts import number_ports, parse_hostfile, parse_hosts
from tfdist.cluster.job_files import JOB_FILES, Nodes, Program, format_job_file
from tfdist.cluster.resolvers.kubernetes import KUBERNETES
from tfdist.cluster.resolvers.slurm import SLURM
from tfdist.cluster.tf_config import loads

PROGRAM = Program("mine", "python train.py --epochs 3", "registry/train:1")
TWO = Cluster(workers=("a:2222", "b:2222"))


CLUSTERS = {
    "one worker": Cluster(workers=("a:1",)),
    "workers": Cluster(workers=("a:65535", "[fe80::4]:1"), task=Task("worker", 1)),
    "a chief alone": Cluster(chief="10.0.0.3:80", task=Task("chief", 0)),
    "all jobs": Cluster(
        chief="node-2:7",
        workers=("a:2222", "a:2223", "b.example:2222"),
        ps=("p:1", "p:2", "q:1"),
        evaluators=("e:5",),
        task=Task("ps", 2),
    ),
    "an evaluator": Cluster(
        workers=("a:1",), evaluators=("e:2",), task=Task("evaluator", 0)
    ),
}
ANY_CLUSTER = pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)


def on_hosts(text, port=2222):
    """Return a cluster of workers on hosts, with ports counted up."""
    return Cluster(workers=number_ports(parse_hosts(text), port))


# Hosts by name, with as many slots each.
EQUAL = ["a", "a:5", "c,node-2.example,b", "n2:3,n1:3"]


@pytest.mark.parametrize("hosts", [*EQUAL, "b:2,10.0.0.3,[fe80::4]:3"])
def test_a_hostfile_survives_the_round_trip(hosts):
    text = format_job_file(on_hosts(hosts), "hostfile", Program())

    assert parse_hostfile(text) == parse_hosts(hosts)


@pytest.mark.parametrize("form", JOB_FILES)
def test_each_form_holds_its_parts_of_the_program(form):
    program = Program("some-name", "some command", "some/image")

    text = format_job_file(TWO, form, program)

    assert text.endswith("\n")
    assert ("some-name" in text) == ("name" in JOB_FILES[form])
    assert ("some/image" in text) == ("image" in JOB_FILES[form])
    assert ("command" in text) == ("command" in JOB_FILES[form])


def variables_of_task(script, rank):
    """Return the variables that `srun` sets in a task of the job of a script."""
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(.+)$", script, re.MULTILINE))
    nodes, slots = int(options["nodes"]), options["ntasks-per-node"]
    given = ",".join(f"n{node}" for node in range(nodes))
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_NODEID": str(rank // int(slots)),
        "SLURM_LOCALID": str(rank % int(slots)),
        "SLURM_STEP_NUM_TASKS": str(nodes * int(slots)),
        "SLURM_STEP_NODELIST": options.get("nodelist", given),
        "SLURM_STEP_TASKS_PER_NODE": f"{slots}(x{nodes})",
        "SLURM_DISTRIBUTION": re.search("--distribution=([a-z]+)", script)[1],
        **dict(re.findall(r"^export (\w+)=(\d+)$", script, re.MULTILINE)),
    }


@pytest.mark.parametrize("first_port", [1, 65_531])
@pytest.mark.parametrize("hosts", EQUAL)
def test_a_cluster_survives_sbatch(hosts, first_port):
    cluster = on_hosts(hosts, first_port)
    with_port = format_job_file(cluster, "sbatch", Program(port=first_port))
    without = format_job_file(cluster, "sbatch", Program())

    for rank in range(cluster.size):
        seen = SLURM.resolve(variables_of_task(with_port, rank))
        assert (seen.workers, seen.rank) == (cluster.workers, rank)
        free = SLURM.resolve(variables_of_task(without, rank))
        assert [hosts_of(free), free.rank] == [hosts_of(cluster), rank]


def hosts_of(cluster):
    return [split_address(address)[0] for address in cluster.workers]


RESOURCES = Program(cpus=3, gpus=2)


ASKED = {
    "sbatch": """
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=3
#SBATCH --gpus-per-task=2
#SBATCH --output=%x-%j.log
""",
    "pbs": """
#PBS -l select=2:ncpus=12:mpiprocs=4:ompthreads=3:ngpus=8
#PBS -l place=scatter:excl
#PBS -j oe
""",
    "lsf": """
#BSUB -n 24
#BSUB -R "span[ptile=12]"
#BSUB -gpu "num=8:j_exclusive=yes"
#BSUB -o train-%J.log
""",
}
# One core for each process, no GPU, any nodes.
LEAST = {
    "sbatch": "--cpus-per-task=1\n",
    "pbs": "select=2:ncpus=4:mpiprocs=4:ompthreads=1\n",
    "lsf": "#BSUB -n 8\n",
}


@pytest.mark.parametrize("form", ASKED)
def test_what_a_batch_system_is_asked_for(form):
    script = format_job_file(Nodes(2, 4), form, RESOURCES)

    assert {*ASKED[form].splitlines()} < {*script.splitlines()}
    least = format_job_file(Nodes(2, 4), form, Program())
    assert re.findall("gpu|host=|-m |nodelist|PORT", least) == []
    assert LEAST[form] in least


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("sbatch", "#SBATCH --nodelist=a,b"),
        (
            "pbs",
            "#PBS -l select=1:ncpus=1:mpiprocs=1:ompthreads=1:host=a+"
            "1:ncpus=1:mpiprocs=1:ompthreads=1:host=b",
        ),
        ("lsf", '#BSUB -m "a b"'),
    ],
)
def test_hosts_that_were_named_are_asked_for(form, line):
    assert line in format_job_file(TWO, form, Program()).splitlines()


@pytest.fixture
def printed_by(tmp_path):
    """Return a function that runs a script beside a program, and returns its lines."""

    def run(script, name, program, **env):
        (tmp_path / name).write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / name).chmod(0o755)
        path = f"{tmp_path}:{os.environ['PATH']}"
        env |= {"PATH": path, "PBS_O_WORKDIR": str(tmp_path)}
        return sorted(
            subprocess.check_output(
                ["bash"], input=script, text=True, env=os.environ | env
            ).splitlines()
        )

    return run


TFDIST = "import sys; from tfdist_cli.main import main; sys.exit(main())"


@pytest.mark.parametrize(
    ("form", "cpus", "variable", "lines"),
    [
        ("pbs", None, "PBS_NODEFILE", 2),
        ("lsf", None, "LSB_DJOB_HOSTFILE", 2),
        # LSF lists each core.
        ("lsf", 3, "LSB_DJOB_HOSTFILE", 6),
    ],
)
def test_a_script_starts_what_its_batch_system_lists(
    form, cpus, variable, lines, tmp_path, printed_by
):
    echo = Program("mine", "sh -c 'echo of $TFDIST_SIZE' x", cpus=cpus)
    script = format_job_file(Nodes(1, 2), form, echo)
    (tmp_path / "list").write_text("127.0.0.1\n" * lines)
    tfdist = f'exec {sys.executable} -c "{TFDIST}" "$@"'

    printed = printed_by(script, "tfdist", tfdist, **{variable: str(tmp_path / "list")})
    assert printed == ["[0 127.0.0.1] of 2", "[1 127.0.0.1] of 2"]


def test_the_command_of_sbatch_is_for_the_shell(printed_by):
    program = Program("mine", "sh -c 'echo $1' x \"$WORD\"")
    script = format_job_file(TWO, "sbatch", program)

    assert "#SBATCH --job-name=mine\n" in script
    srun = 'shift 4\nexec "$@"'
    assert printed_by(script, "srun", srun, WORD="two words") == ["two words"]


def limits(container):
    return container["resources"].get("limits")


def test_the_resources_of_pods():
    def containers(form, cluster, program):
        documents = yaml.safe_load_all(
            format_job_file(cluster, form, replace(program, image="x"))
        )
        *_, job = documents
        kinds = job["spec"].get("tfReplicaSpecs") or job["spec"].get("mpiReplicaSpecs")
        kinds = kinds or {"Pod": job["spec"]}
        return {
            kind: pods["template"]["spec"]["containers"][0]
            for kind, pods in kinds.items()
        }

    roles = Cluster(chief="c:1", workers=("a:1",), ps=("p:1",), evaluators=("e:1",))
    each = {"cpu": 3, "nvidia.com/gpu": 2}
    (pod,) = containers("kubernetes", TWO, RESOURCES).values()
    assert limits(pod) == each
    two_on_each = Cluster(workers=("a:1", "a:2", "b:1", "b:2"))
    pods = containers("mpijob", two_on_each, RESOURCES)
    assert limits(pods["Worker"]) == {"cpu": 6, "nvidia.com/gpu": 4}
    assert "resources" not in pods["Launcher"]
    pods = containers("tfjob", roles, RESOURCES)
    assert {kind: limits(pod) for kind, pod in pods.items()} == {
        **{"Chief": {"cpu": 3}, "PS": {"cpu": 3}},
        **{"Worker": each, "Evaluator": each},
    }
    # A chief without parameter servers trains.
    pods = containers("tfjob", Cluster(chief="c:1", workers=("a:1",)), RESOURCES)
    assert limits(pods["Chief"]) == each
    (pod,) = containers("kubernetes", TWO, Program()).values()
    assert pod["resources"] == {}


def test_services_of_one_machine_have_different_gpus():
    text = format_job_file(
        Cluster(chief="c:1", workers=("a:1", "b:1"), ps=("p:1",)),
        "compose",
        replace(RESOURCES, image="x"),
    )

    found = {
        name: service["deploy"]["resources"]
        for name, service in yaml.safe_load(text)["services"].items()
    }
    assert {each["limits"]["cpus"] for each in found.values()} == {"3"}
    assert {
        name: each["reservations"]["devices"][0]["device_ids"]
        for name, each in found.items()
        if "reservations" in each
    } == {"worker-0": ["0", "1"], "worker-1": ["2", "3"]}


@pytest.mark.parametrize(
    ("hosts", "port"), [("a", 1), ("b:2,10.0.0.3,[fe80::4]:3", 65_531)]
)
def test_a_cluster_survives_kubernetes(hosts, port):
    cluster = on_hosts(hosts, port)

    text = format_job_file(cluster, "kubernetes", PROGRAM)

    service, job = yaml.safe_load_all(text)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    env = {each["name"]: each["value"] for each in container["env"]}
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == cluster.size
    assert container["command"] == ["python", "train.py", "--epochs", "3"]
    assert container["image"] == "registry/train:1"
    assert job["spec"]["completionMode"] == "Indexed"
    # https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    for index in range(cluster.size):
        seen = KUBERNETES.resolve(env | {"JOB_COMPLETION_INDEX": str(index)})
        assert (seen.rank, seen.size) == (index, cluster.size)
        assert seen.workers == tuple(
            f"mine-{pod}.mine:{port}" for pod in range(cluster.size)
        )


def tf_config_of_operator(job, task, index):
    """Return the TF_CONFIG that version 1.9 of the training operator sets in a pod.

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


@ANY_CLUSTER
def test_a_cluster_survives_tfjob(cluster):
    job = yaml.safe_load(format_job_file(cluster, "tfjob", PROGRAM))

    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "TFJob")
    for replicas in job["spec"]["tfReplicaSpecs"].values():
        (container,) = replicas["template"]["spec"]["containers"]
        assert replicas["restartPolicy"] == "Never"
        assert container["command"] == ["python", "train.py", "--epochs", "3"]
    text_of_task = tf_config_of_operator(job, cluster.task.type, cluster.task.index)
    seen = loads(text_of_task)
    assert seen.task == cluster.task
    assert seen.jobs == {
        job: tuple(
            f"mine-{job}-{pod}.default.svc:{split_address(addresses[0])[1]}"
            for pod in range(len(addresses))
        )
        for job, addresses in cluster.jobs.items()
    }


@pytest.mark.parametrize("hosts", EQUAL)
def test_hosts_and_slots_survive_mpijob(hosts):
    text = format_job_file(on_hosts(hosts), "mpijob", PROGRAM)

    job = yaml.safe_load(text)
    replicas = job["spec"]["mpiReplicaSpecs"]
    (launcher,) = replicas["Launcher"]["template"]["spec"]["containers"]
    command, given = launcher["command"], parse_hosts(hosts)
    assert replicas["Launcher"]["replicas"] == 1
    assert replicas["Worker"]["replicas"] == len(given)
    assert job["spec"]["slotsPerWorker"] == given[0].slots
    assert command[command.index("-np") + 1] == str(len(given) * given[0].slots)
    assert command[command.index("--hostfile") + 1] == "/etc/mpi/hostfile"
    assert job["spec"]["runPolicy"]["backoffLimit"] == 0
    assert command[-4:] == ["python", "train.py", "--epochs", "3"]


@ANY_CLUSTER
def test_a_cluster_survives_compose(cluster):
    program = Program("mine", "python train.py --dir '$HOME/a b'", "registry/train:1")

    text = format_job_file(cluster, "compose", program)

    services = yaml.safe_load(text)["services"]
    # Compose makes a single $ of two.
    command = ["python", "train.py", "--dir", "$$HOME/a b"]
    assert all(service["command"] == command for service in services.values())
    seen = {
        name: loads(service["environment"]["TF_CONFIG"])
        for name, service in services.items()
    }
    assert len(services) == sum(map(len, cluster.jobs.values()))
    for name, inside in seen.items():
        # The address that the others know.
        assert split_address(inside.address)[0] == name
        assert name == f"{inside.task.type}-{inside.task.index}"
        assert ports_of(inside) == ports_of(cluster)


def ports_of(cluster):
    return {
        job: [split_address(address)[1] for address in addresses]
        for job, addresses in cluster.jobs.items()
    }


IPV6 = ("a:1", "[fe80::1]:1")
UNEQUAL = ("a:1", "a:2", "b:1")
OTHER_FORMS = "Take json, tfjob or compose, which hold every job"
NAMES = "--to {} has hosts by the names that the batch system gives them. Received: a,["


@pytest.mark.parametrize(
    ("form", "cluster", "message"),
    [
        ("sbatch", Cluster(workers=IPV6), NAMES.format("sbatch")),
        ("pbs", Cluster(workers=IPV6), NAMES.format("pbs")),
        ("sbatch", Cluster(workers=UNEQUAL), "--to sbatch has one number of workers f"),
        ("mpijob", Cluster(workers=UNEQUAL), "--to mpijob has one number of workers f"),
        (
            "mpijob",
            Cluster(workers=("a:1", "b:2", "a:2")),
            "--to mpijob gives ranks to one host after another. Received: workers in",
        ),
        (
            "kubernetes",
            Cluster(chief="c:1", workers=("a:1",)),
            "--to kubernetes holds workers only, which all run the same. Received: "
            f"also chief. {OTHER_FORMS}, or make the chief worker 0, and leave out",
        ),
        (
            "sbatch",
            Cluster(workers=("a:1",), ps=("p:1",)),
            "--to sbatch holds workers only, which all run the same. Received: also "
            f"ps. {OTHER_FORMS}, or write tfdist run --workers N --ps M train.py into ",
        ),
        (
            "kubernetes",
            Cluster(workers=("a:1",), ps=("p:1",)),
            "--to kubernetes holds workers only, which all run the same. Received: "
            f"also ps. {OTHER_FORMS}.",
        ),
    ],
)
def test_a_form_that_cannot_hold_the_cluster_refuses_it(form, cluster, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        format_job_file(cluster, form, PROGRAM)


IMAGE = "--image must name the image of the containers of --to mpijob. Received: no"
LINE = "--command must be a line that a shell can run. Received: --command "


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        *(
            (
                {"name": name},
                f"--name must begin with a small letter .* --name '{name}'",
            )
            for name in ("", "Train", "1a", "a-", "a" * 41)
        ),
        (
            {"image": "a b"},
            "--image must be a container image. Received: --image 'a b'",
        ),
        ({"image": ""}, IMAGE),
        ({"cpus": 0}, "--cpus must be from 1 to 65535. Received: --cpus 0. Give anoth"),
        ({"gpus": 65_536}, "--gpus must be from 1 to 65535. Received: --gpus 65536. "),
        ({"command": ""}, f"{LINE}''. Close its"),
        ({"command": "a 'b"}, LINE),
        ({"command": "a\nb"}, LINE),
    ],
)
def test_an_impossible_program_is_refused(parts, message):
    assert Program(name="my-job-2").words == ["python", "train.py"]
    with pytest.raises(ValueError, match=f"^{message}"):
        format_job_file(TWO, "mpijob", Program(**parts))
