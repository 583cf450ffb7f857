"""Variables of Kubernetes and SageMaker that describe no possible job."""

import pytest

POD = {
    "TFDIST_JOB_NAME": "train",
    "TFDIST_SERVICE": "peers",
    "TFDIST_WORKERS": "2",
    "JOB_COMPLETION_INDEX": "1",
}
SAGEMAKER = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}

# What is changed in POD.
PODS = [
    (
        {"TFDIST_JOB_NAME": None},
        "TFDIST_JOB_NAME must be the name of the Job or of the StatefulSet.",
    ),
    (
        {"TFDIST_JOB_NAME": "Train"},
        "TFDIST_JOB_NAME must be the name of the Job or of the StatefulSet.",
    ),
    (
        {"TFDIST_JOB_NAME": "train-"},
        "TFDIST_JOB_NAME must be the name of the Job or of the StatefulSet.",
    ),
    (
        {"TFDIST_JOB_NAME": "a b"},
        "TFDIST_JOB_NAME must be the name of the Job or of the StatefulSet.",
    ),
    (
        {"TFDIST_JOB_NAME": "x\n"},
        "TFDIST_JOB_NAME must be the name of the Job or of the StatefulSet.",
    ),
    (
        {"TFDIST_SERVICE": None},
        "TFDIST_SERVICE must be the name of the headless service of the pods.",
    ),
    (
        {"TFDIST_SERVICE": "peers."},
        "TFDIST_SERVICE must be the name of the headless service of the pods.",
    ),
    (
        {"TFDIST_SERVICE": "peers:2222"},
        "TFDIST_SERVICE must be the name of the headless service of the pods.",
    ),
    (
        {"TFDIST_SERVICE": "http://peers"},
        "TFDIST_SERVICE must be the name of the headless service of the pods.",
    ),
    (
        {"TFDIST_SERVICE": "p" * 200 + "_"},
        "TFDIST_SERVICE must be the name of the headless service of the pods.",
    ),
    (
        {"TFDIST_WORKERS": None},
        "TFDIST_WORKERS must be a whole number from 1 to 10000.",
    ),
    ({"TFDIST_WORKERS": "0"}, "TFDIST_WORKERS must be a whole number from 1 to 10000."),
    (
        {"TFDIST_WORKERS": "two"},
        "TFDIST_WORKERS must be a whole number from 1 to 10000.",
    ),
    (
        {"TFDIST_WORKERS": "-2"},
        "TFDIST_WORKERS must be a whole number from 1 to 10000.",
    ),
    (
        {"TFDIST_WORKERS": "10001"},
        "TFDIST_WORKERS must be a whole number from 1 to 10000.",
    ),
    (
        {"TFDIST_WORKERS": "\u0662"},
        "TFDIST_WORKERS must be a whole number from 1 to 10000.",
    ),
    (
        {"TFDIST_WORKERS": "9" * 5000},
        "TFDIST_WORKERS must be a whole number from 1 to 10000.",
    ),
    (
        {"TFDIST_WORKERS": "1"},
        "The index of this pod must be from 0 to 0, as there are no more pods.",
    ),
    ({"JOB_COMPLETION_INDEX": "one"}, "JOB_COMPLETION_INDEX must be a whole number."),
    ({"JOB_COMPLETION_INDEX": "-1"}, "JOB_COMPLETION_INDEX must be a whole number."),
    (
        {"JOB_COMPLETION_INDEX": "2"},
        "The index of this pod must be from 0 to 1, as there are no more pods.",
    ),
    (
        {"JOB_COMPLETION_INDEX": None, "HOSTNAME": None},
        "Nothing tells which pod of the job this is.",
    ),
    (
        {"JOB_COMPLETION_INDEX": None, "HOSTNAME": "laptop"},
        "Nothing tells which pod of the job this is.",
    ),
    (
        {"JOB_COMPLETION_INDEX": None, "HOSTNAME": "other-1"},
        "Nothing tells which pod of the job this is.",
    ),
    (
        {"JOB_COMPLETION_INDEX": None, "HOSTNAME": "train-x"},
        "Nothing tells which pod of the job this is.",
    ),
    ({"TFDIST_PORT": "0"}, "TFDIST_PORT must be a port from 1 to 65535."),
    (
        {"TFDIST_PORT": "tcp://10.0.0.1:80"},
        "TFDIST_PORT must be a port from 1 to 65535.",
    ),
    ({"TFDIST_PORT": "65536"}, "TFDIST_PORT must be a port from 1 to 65535."),
]
# What is changed in SAGEMAKER.
HOSTS = [
    (
        {"SM_HOSTS": "algo-1,algo-2"},
        "SM_HOSTS is not valid JSON: Expecting value at line 1, column 1.",
    ),
    ({"SM_HOSTS": '"algo-1"'}, "SM_HOSTS must be a JSON list of host names."),
    ({"SM_HOSTS": '{"algo-1": 1}'}, "SM_HOSTS must be a JSON list of host names."),
    ({"SM_HOSTS": "[1, 2]"}, "SM_HOSTS must be a JSON list of host names."),
    ({"SM_HOSTS": '["algo-1", 2]'}, "SM_HOSTS must be a JSON list of host names."),
    ({"SM_HOSTS": '["algo-1", "algo-1"]'}, "SM_CURRENT_HOST must be one of SM_HOSTS."),
    (
        {"SM_HOSTS": '["algo-1"'},
        "SM_HOSTS is not valid JSON: Expecting ',' delimiter at line 1, column 10.",
    ),
    (
        {"SM_HOSTS": "[" * 100000},
        "SM_HOSTS is not valid JSON: its brackets are nested too deep.",
    ),
    (
        {"SM_HOSTS": '["algo-1", "algo-2"] x'},
        "SM_HOSTS is not valid JSON: Extra data at line 1, column 22.",
    ),
    ({"SM_CURRENT_HOST": None}, "SM_CURRENT_HOST must be one of SM_HOSTS."),
    ({"SM_CURRENT_HOST": "algo-3"}, "SM_CURRENT_HOST must be one of SM_HOSTS."),
    ({"SM_CURRENT_HOST": "ALGO-1"}, "SM_CURRENT_HOST must be one of SM_HOSTS."),
    (
        {"SM_IS_HETERO": "true"},
        "SM_HOSTS lists hosts of several instance groups, and nothing tells which of",
    ),
    (
        {"SM_IS_HETERO": "True", "SM_INSTANCE_GROUPS": '["a","b"]'},
        "SM_HOSTS lists hosts of several instance groups, and nothing tells which of",
    ),
    (
        {"SM_HOSTS": '["algo-2", "a b"]'},
        'SM_HOSTS cluster.worker[1] must be one bare "host:port".',
    ),
    ({"SM_HOSTS": '["algo-2", ""]'}, "SM_HOSTS cluster.worker[1] has no host."),
    (
        {"SM_HOSTS": '["algo-2", "algo-2"]'},
        "SM_HOSTS cluster.worker[1] has the same address as cluster.worker[0].",
    ),
]
# All variables, and the problem.
ROWS = [
    *((POD | changes, problem) for changes, problem in PODS),
    *((SAGEMAKER | changes, problem) for changes, problem in HOSTS),
]


@pytest.mark.parametrize(("variables", "problem"), ROWS)
def test_what_a_service_tells(variables, problem, refusal):
    assert refusal("config", "show", **variables).startswith(problem)


def test_no_two_are_refused_in_the_same_words(refusal):
    messages = [refusal("config", "show", **variables) for variables, _ in ROWS]

    assert len({*messages}) == len(messages)
