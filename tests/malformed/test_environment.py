"""Variables that describe no possible job: one error in three parts."""

import json

import pytest

SECOND = {"type": "worker", "index": 1}
TF_CONFIG = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": SECOND})
RUN = {"TFDIST_RUN_ID": "5f", "TF_CONFIG": TF_CONFIG}
STEP = {
    "SLURM_JOB_ID": "41",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "n[8-9]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}
POD = {"TFDIST_JOB_NAME": "train", "TFDIST_SERVICE": "peers", "TFDIST_WORKERS": "2"}
ROWS = [
    ({"TF_CONFIG": "{"}, "TF_CONFIG is not valid JSON at line 1, column 2: "),
    ({"TF_CONFIG": "node1:2222"}, "TF_CONFIG is not valid JSON at line 1, column 1: "),
    ({"TF_CONFIG": "[" * 100_000}, "TF_CONFIG cannot be read as JSON."),
    ({"TF_CONFIG": '{"x": ' + "9" * 5000 + "}"}, "TF_CONFIG cannot be read as JSON."),
    (
        {"TF_CONFIG": TF_CONFIG.replace("cluster", "clusters")},
        'TF_CONFIG has an unknown key "clusters".',
    ),
    (RUN | {"TFDIST_SIZE": "2"}, "TFDIST_RANK must be a whole number, as `tfdist run`"),
    (
        RUN | {"TFDIST_RANK": "0", "TFDIST_SIZE": "2"},
        "TF_CONFIG is not the one that `tfdist run` gave to this process.",
    ),
    (STEP | {"SLURM_STEP_NODELIST": "n[1-"}, "SLURM_STEP_NODELIST is not a list of"),
    (STEP | {"SLURM_STEP_TASKS_PER_NODE": "2x2"}, "SLURM_STEP_TASKS_PER_NODE must be"),
    (STEP | {"SLURM_PROCID": "4"}, "SLURM_PROCID must be below SLURM_STEP_NUM_TASKS."),
    (STEP | {"SLURM_NODEID": "0"}, "The variables of `srun` give this process two"),
    (POD | {"TFDIST_PORT": "tcp://10.0.0.1:80"}, "TFDIST_PORT must be a port from 1"),
    (POD | {"HOSTNAME": "laptop"}, "No variable gives the index of this pod."),
    (
        {"SM_HOSTS": "algo-1,algo-2", "SM_CURRENT_HOST": "algo-1"},
        "SM_HOSTS is not valid JSON: Expecting value at line 1, column 1.",
    ),
    ({"CLUSTER_SPEC": '["workerpool0"]'}, "CLUSTER_SPEC must be a JSON object."),
    ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_SIZE must be a whole number, as"),
    ({"PMIX_RANK": "1", "PMIX_NAMESPACE": "x"}, "PMIX_RANK gives the rank of this"),
]


@pytest.mark.parametrize(("variables", "problem"), ROWS)
def test_the_environment_is_refused(variables, problem, refusal):
    assert refusal("config", "show", **variables).startswith(problem)
