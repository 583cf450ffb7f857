import pytest

from tfdist.cluster.model import Cluster, Task
from tfdist.cluster.resolvers.kubernetes import KubernetesResolver

# A pod of a Job with `completionMode: Indexed`; Kubernetes sets the last three.
JOB = {
    "TFDIST_JOB_NAME": "train",
    "TFDIST_SERVICE": "peers",
    "TFDIST_WORKERS": "12",
    "TFDIST_PORT": "2300",
    "JOB_COMPLETION_INDEX": "10",
    "HOSTNAME": "train-10",
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
}
# A pod of a StatefulSet.
SET = {
    "TFDIST_JOB_NAME": "train",
    "TFDIST_SERVICE": "peers",
    "TFDIST_WORKERS": "2",
    "HOSTNAME": "train-1",
}

# What is wrong: what is changed, how the error begins, what it received, its advice.
MALFORMED = {
    "no name": (
        {"TFDIST_JOB_NAME": None},
        "TFDIST_JOB_NAME must be the name of the Job or of the StatefulSet.",
        "no TFDIST_JOB_NAME",
        "Set it in the pod template to metadata.name",
    ),
    "an empty name": (
        {"TFDIST_JOB_NAME": ""},
        "TFDIST_JOB_NAME must be the name",
        "TFDIST_JOB_NAME=''",
        "Set it in the pod template to metadata.name",
    ),
    "a name of capitals": (
        {"TFDIST_JOB_NAME": "Train"},
        "TFDIST_JOB_NAME must be the name",
        "TFDIST_JOB_NAME='Train'",
        "small letters, digits and hyphens",
    ),
    "a name that was not filled in": (
        {"TFDIST_JOB_NAME": "$(JOB_NAME)"},
        "TFDIST_JOB_NAME must be the name",
        "TFDIST_JOB_NAME='$(JOB_NAME)'",
        "Set it in the pod template to metadata.name",
    ),
    "a name that ends in a hyphen": (
        {"TFDIST_JOB_NAME": "train-"},
        "TFDIST_JOB_NAME must be the name",
        "TFDIST_JOB_NAME='train-'",
        "small letters, digits and hyphens",
    ),
    "a name with a line behind it": (
        {"TFDIST_JOB_NAME": "train\n"},
        "TFDIST_JOB_NAME must be the name",
        "TFDIST_JOB_NAME='train\\n'",
        "small letters, digits and hyphens",
    ),
    "no service": (
        {"TFDIST_SERVICE": None},
        "TFDIST_SERVICE must be the name of the headless service of the pods.",
        "no TFDIST_SERVICE",
        "the same name as the subdomain or serviceName",
    ),
    "a service with its port": (
        {"TFDIST_SERVICE": "peers:2222"},
        "TFDIST_SERVICE must be the name of the headless service",
        "TFDIST_SERVICE='peers:2222'",
        "Set it in the pod template",
    ),
    "the URL of a service": (
        {"TFDIST_SERVICE": "http://peers"},
        "TFDIST_SERVICE must be the name of the headless service",
        "TFDIST_SERVICE='http://peers'",
        "Set it in the pod template",
    ),
    "a service with two points": (
        {"TFDIST_SERVICE": "peers..svc"},
        "TFDIST_SERVICE must be the name of the headless service",
        "TFDIST_SERVICE='peers..svc'",
        "Set it in the pod template",
    ),
    "no workers": (
        {"TFDIST_WORKERS": None},
        "TFDIST_WORKERS must be a whole number from 1 to 10000.",
        "no TFDIST_WORKERS",
        "the completions of the Job, or to the replicas",
    ),
    "workers in words": (
        {"TFDIST_WORKERS": "two"},
        "TFDIST_WORKERS must be a whole number from 1 to 10000.",
        "TFDIST_WORKERS='two'",
        "Set it in the pod template",
    ),
    "zero workers": (
        {"TFDIST_WORKERS": "0"},
        "TFDIST_WORKERS must be a whole number from 1 to 10000.",
        "TFDIST_WORKERS='0'",
        "Set it in the pod template",
    ),
    "negative workers": (
        {"TFDIST_WORKERS": "-2"},
        "TFDIST_WORKERS must be a whole number from 1 to 10000.",
        "TFDIST_WORKERS='-2'",
        "Set it in the pod template",
    ),
    "more workers than pods can be": (
        {"TFDIST_WORKERS": "10001"},
        "TFDIST_WORKERS must be a whole number from 1 to 10000.",
        "TFDIST_WORKERS='10001'",
        "Set it in the pod template",
    ),
    "thousands of digits": (
        {"TFDIST_WORKERS": "1" * 5000},
        "TFDIST_WORKERS must be a whole number from 1 to 10000.",
        "TFDIST_WORKERS='111",
        "Set it in the pod template",
    ),
    "digits of another script": (
        {"TFDIST_WORKERS": "٣"},
        "TFDIST_WORKERS must be a whole number from 1 to 10000.",
        "TFDIST_WORKERS='٣'",
        "Set it in the pod template",
    ),
    # What Kubernetes itself sets where a Service is called tfdist.
    "a port of a service": (
        {"TFDIST_PORT": "tcp://10.0.0.1:2222"},
        "TFDIST_PORT must be a port from 1 to 65535.",
        "TFDIST_PORT='tcp://10.0.0.1:2222'",
        "Kubernetes sets it to an address where a Service is called tfdist.",
    ),
    "port 0": (
        {"TFDIST_PORT": "0"},
        "TFDIST_PORT must be a port from 1 to 65535.",
        "TFDIST_PORT='0'",
        "Set it in the pod template",
    ),
    "a port beyond all": (
        {"TFDIST_PORT": "65536"},
        "TFDIST_PORT must be a port from 1 to 65535.",
        "TFDIST_PORT='65536'",
        "Set it in the pod template",
    ),
    "an index in words": (
        {"JOB_COMPLETION_INDEX": "one"},
        "JOB_COMPLETION_INDEX must be a whole number.",
        "JOB_COMPLETION_INDEX='one'",
        "Leave it as Kubernetes sets it.",
    ),
    "a negative index": (
        {"JOB_COMPLETION_INDEX": "-1"},
        "JOB_COMPLETION_INDEX must be a whole number.",
        "JOB_COMPLETION_INDEX='-1'",
        "Leave it as Kubernetes sets it.",
    ),
    "an index beyond the workers": (
        {"JOB_COMPLETION_INDEX": "12"},
        "The index of this pod must be from 0 to 11, as there are no more pods.",
        "index 12, TFDIST_WORKERS=12",
        "Set TFDIST_WORKERS to the completions of the Job",
    ),
    "no index": (
        {"JOB_COMPLETION_INDEX": None, "HOSTNAME": None},
        "No variable gives the index of this pod.",
        "no JOB_COMPLETION_INDEX, and no HOSTNAME",
        "Give the Job completionMode: Indexed",
    ),
    "a pod of a Job that is not indexed": (
        {"JOB_COMPLETION_INDEX": None, "HOSTNAME": "train-x7k2p"},
        "No variable gives the index of this pod.",
        "no JOB_COMPLETION_INDEX, and HOSTNAME='train-x7k2p'",
        "Give the Job completionMode: Indexed",
    ),
    "a pod of another StatefulSet": (
        {"JOB_COMPLETION_INDEX": None, "HOSTNAME": "other-1"},
        "No variable gives the index of this pod.",
        "no JOB_COMPLETION_INDEX, and HOSTNAME='other-1'",
        "or call the StatefulSet train, as TFDIST_JOB_NAME says.",
    ),
    "a pod with a longer name": (
        {"JOB_COMPLETION_INDEX": None, "HOSTNAME": "train-ps-1"},
        "No variable gives the index of this pod.",
        "no JOB_COMPLETION_INDEX, and HOSTNAME='train-ps-1'",
        "or call the StatefulSet train",
    ),
    "a name of digits alone": (
        {"JOB_COMPLETION_INDEX": None, "HOSTNAME": "1"},
        "No variable gives the index of this pod.",
        "no JOB_COMPLETION_INDEX, and HOSTNAME='1'",
        "Give the Job completionMode: Indexed",
    ),
}


def changed(env, changes):
    changed_env = env | changes
    return {name: value for name, value in changed_env.items() if value is not None}


def test_a_pod_of_an_indexed_job():
    assert KubernetesResolver().recognises(JOB)
    assert KubernetesResolver().resolve(JOB) == Cluster(
        workers=tuple(f"train-{pod}.peers:2300" for pod in range(12)),
        task=Task("worker", 10),
    )


@pytest.mark.parametrize(
    "hostname", ["train-1", "train-1.peers.default.svc.cluster.local"]
)
def test_a_pod_of_a_stateful_set(hostname):
    assert KubernetesResolver().recognises(SET)
    assert KubernetesResolver().resolve(SET | {"HOSTNAME": hostname}) == Cluster(
        workers=("train-0.peers:2222", "train-1.peers:2222"), task=Task("worker", 1)
    )


def test_the_index_of_a_job_comes_before_the_name_of_the_host():
    # With `hostNetwork` the pod has the name of its node.
    assert KubernetesResolver().resolve(JOB | {"HOSTNAME": "node-3"}).rank == 10


def test_a_service_in_another_namespace():
    env = SET | {"TFDIST_SERVICE": "peers.research.svc.cluster.local"}
    address = KubernetesResolver().resolve(env).address
    assert address == "train-1.peers.research.svc.cluster.local:2222"


def test_a_name_with_hyphens_and_digits():
    env = SET | {"TFDIST_JOB_NAME": "train-2", "HOSTNAME": "train-2-0"}
    assert KubernetesResolver().resolve(env).address == "train-2-0.peers:2222"


def test_a_single_pod_is_no_distributed_job():
    env = SET | {"TFDIST_WORKERS": "1", "HOSTNAME": "train-0"}
    assert not KubernetesResolver().resolve(env).is_distributed


@pytest.mark.parametrize(
    "name", ["TFDIST_JOB_NAME", "TFDIST_SERVICE", "TFDIST_WORKERS"]
)
def test_one_variable_of_the_template_shows_the_rest_is_missing(name):
    env = {name: JOB[name], "JOB_COMPLETION_INDEX": "1"}
    assert KubernetesResolver().recognises(env)
    with pytest.raises(
        ValueError, match=r"^TFDIST_.* Received: no TFDIST_.* Set it in"
    ):
        KubernetesResolver().resolve(env)


@pytest.mark.parametrize(
    "env",
    [
        {},
        # Any pod of an indexed Job, and any pod at all.
        {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "train-1"},
        {"HOSTNAME": "train-1", "KUBERNETES_SERVICE_HOST": "10.0.0.1"},
        {"TFDIST_WORKERS": ""},
        # One of several processes in the pod.
        JOB | {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "8"},
    ],
)
def test_what_no_pod_template_has_set_for_this_process_is_not_recognised(env):
    assert not KubernetesResolver().recognises(env)


@pytest.mark.parametrize("mistake", MALFORMED)
def test_a_malformed_variable_is_refused(mistake):
    changes, wrong, received, advice = MALFORMED[mistake]
    env = changed(JOB, changes)
    assert KubernetesResolver().recognises(env)

    with pytest.raises(ValueError, match=r" Received: ") as error:
        KubernetesResolver().resolve(env)

    what, _, rest = str(error.value).partition(" Received: ")
    assert what.startswith(wrong)
    assert rest.startswith(received)
    assert advice in rest
