"""Every reader of what people and schedulers write, given malformed text.

The texts are those of the real grammars, taken apart and put together wrongly. For each
text, a reader returns a result or raises a ValueError in three parts, within a second
of processor time.

Each test tries the same texts in every run; with TFDIST_FUZZ_SECONDS=60 it tries other
ones for a minute.
"""

import json
from itertools import chain

import pytest
from fuzzing import fuzz, outcome, values
from hypothesis import strategies as st

from tfdist.cluster import tf_config
from tfdist.cluster.detect import (
    RANK_RESOLVERS,
    RESOLVERS,
    detect,
    detect_membership,
    explain,
)
from tfdist.cluster.hosts import expand, expand_counts, number_ports, parse_hosts
from tfdist.cluster.resolvers.launchers import GUARDS
from tfdist.cluster.tf_config import findings
from tfdist.cluster.validation import EFFECTS, ERROR

# `tests/conftest.py` hides from the garbage collector what Hypothesis looks for there.
pytestmark = pytest.mark.filterwarnings("ignore:It looks like `register_random`")

HOST_LISTS = ("a", "a:4", "a:4,b:4", "[::1]:2", "a.b-c:1,10.0.0.1", "localhost:2")
NODE_LISTS = ("n1", "n[8-10]", "n[1-3,7],m5", "r[1-2]n[01-03]", "n[0-65535]", "a[1]-ib")
COUNTS = ("2(x2)", "1", "2(x3),1", "2,2", "1(x65536)")
CLUSTERS = (
    {"worker": ["a:1", "b:1"]},
    {"chief": ["c:1"], "worker": ["a:1"], "ps": ["p:1"], "evaluator": ["e:1"]},
    {"master": ["[::1]:1"], "worker": ["localhost:2"]},
    {"workerpool0": ["a:1"], "workerpool1": ["b:1", "c:1"], "workerpool2": ["d:1"]},
)
TASKS = (
    {"type": "worker", "index": 1},
    {"type": "ps", "index": 0},
    {"type": "workerpool1", "index": 0, "trial": "1"},
)
CONFIGS = tuple(
    json.dumps({"cluster": cluster, "task": task})
    for cluster in CLUSTERS
    for task in TASKS
)
SPECS = tuple(text for text in reversed(CONFIGS) if "workerpool0" in text)
RANKS, SIZES = ("1", "0", "2", "3"), ("2", "4", "1", "0")
# The variables that each resolver reads. The first values of all make a whole.
VARIABLES = {
    "tfdist": {
        "TFDIST_RUN_ID": ("5f",),
        "TF_CONFIG": CONFIGS,
        "TFDIST_RANK": RANKS,
        "TFDIST_SIZE": SIZES,
        "TFDIST_TASK": ("worker 1", "ps 0"),
    },
    "tf_config": {"TF_CONFIG": CONFIGS},
    "kubernetes": {
        "TFDIST_JOB_NAME": ("train",),
        "TFDIST_SERVICE": ("peers", "peers.default.svc"),
        "TFDIST_WORKERS": (*SIZES, "10000"),
        "TFDIST_PORT": ("2222",),
        "JOB_COMPLETION_INDEX": RANKS,
        "HOSTNAME": ("train-1", "train-0.peers"),
    },
    "volcano": {
        "VC_WORKER_HOSTS": ("a-0.a,a-1.a", "a-1.a", ","),
        "HOSTNAME": ("a-1", "node-7"),
        "TFDIST_PORT": ("2222", "tcp://10.0.0.1"),
    },
    "trainjob": {
        "PET_NODE_RANK": ("1", *RANKS),
        "PET_NNODES": ("2", *SIZES, "1:4"),
        "PET_NPROC_PER_NODE": ("1", "auto", "4"),
        "PET_MASTER_ADDR": ("train-node-0-0.train", "10.0.0.1", "-0."),
        "TFDIST_PORT": ("2222", "tcp://10.0.0.1"),
    },
    "vertex": {"CLUSTER_SPEC": SPECS},
    "tony": {
        "CLUSTER_SPEC": ('{"worker": ["a:1", "b:1"]}', "{", "[]", *SPECS),
        "JOB_NAME": ("worker", "tensorboard"),
        "TASK_INDEX": RANKS,
    },
    "sagemaker": {
        "SM_HOSTS": ('["algo-1", "algo-2"]',),
        "SM_CURRENT_HOST": ("algo-1", "algo-2"),
        "SM_IS_HETERO": ("false", "true"),
        "SM_INSTANCE_GROUPS": ('["a"]',),
    },
    "slurm": {
        "SLURM_JOB_ID": ("41",),
        "SLURM_STEP_ID": ("0", "1"),
        "SLURM_PROCID": ("2", *RANKS),
        "SLURM_STEP_NUM_TASKS": ("4", "65536"),
        "SLURM_STEP_NODELIST": ("n[8-9]", *NODE_LISTS),
        "SLURM_STEP_TASKS_PER_NODE": COUNTS,
        "SLURM_NODEID": RANKS,
        "SLURM_LOCALID": ("0", *RANKS),
        "SLURMD_NODENAME": ("n9", "n8"),
        "SLURM_DISTRIBUTION": ("block", "cyclic", "plane=2", "arbitrary", "*", ""),
        "SLURM_DIST_PLANESIZE": SIZES,
        "SLURM_HET_SIZE": ("2",),
        "SLURM_RESTART_COUNT": ("1",),
        "TFDIST_PORT_BASE": ("20000", "65535"),
    },
    **{
        each.name: dict(zip(each.variables, (RANKS, SIZES) * 2, strict=True))
        | dict.fromkeys({*each.signs} - {*each.variables}, ("none",))
        | dict.fromkeys({each.hosts}, ("2", "0", ""))
        | (dict.fromkeys(each.denials, ("", "singleton")) if each in GUARDS else {})
        for each in RANK_RESOLVERS
    },
}
# Some launchers lack a variable that others have.
for samples in VARIABLES.values():
    samples.pop("", None)


def json_values():
    """Values of JSON, of which some are parts of a TF_CONFIG."""
    key = st.sampled_from(
        [*"ab", "cluster", "clusters", "task", "worker", "chief", "master", "ps"]
        + ["sparseCluster", "type", "index", "rpc_layer", "\ud800", "k" * 5000]
    )
    leaf = st.sampled_from(
        [None, True, -1, 0, 1, 0.5, 1e999, 10**30, "", "a:1", "b:1", "a", "worker"]
        + ["chief", "localhost:1", "[x]:1", "a:0", *CLUSTERS, *TASKS, ["a:1"] * 5000]
        + [{f"k{number}": [] for number in range(5000)}]
    )
    return st.recursive(
        leaf,
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(key, inner, max_size=5)
        ),
        max_leaves=12,
    )


CONFIG_TEXTS = st.one_of(
    values(CONFIGS),
    json_values().map(json.dumps),
    st.fixed_dictionaries(
        {},
        optional={
            "cluster": st.sampled_from(CLUSTERS) | json_values(),
            "task": st.sampled_from(TASKS) | json_values(),
            "x": json_values(),
        },
    ).map(json.dumps),
)


@st.composite
def environments(draw, names):
    """Variables of these resolvers, all as they should be but for a few."""
    samples = dict(chain.from_iterable(VARIABLES[name].items() for name in names))
    env = {name: those[0] for name, those in samples.items()}
    for name in draw(st.sets(st.sampled_from([*samples]), max_size=3)):
        env[name] = draw(st.none() | values(samples[name]))
    return {name: value for name, value in env.items() if value is not None}


@pytest.mark.parametrize(
    ("read", "samples"), [(expand, NODE_LISTS), (expand_counts, COUNTS)]
)
def test_lists_of_slurm(read, samples):
    def check(text):
        result, message = outcome(read, text)
        assert bool(result) is not bool(message)

    fuzz(check, values(samples))


def test_lists_of_hosts():
    def check(text):
        hosts, _ = outcome(parse_hosts, text)
        if hosts:
            addresses, _ = outcome(number_ports, hosts, 2222)
            assert addresses is None or len(addresses) == sum(h.slots for h in hosts)

    fuzz(check, values(HOST_LISTS))


def test_tf_config():
    def check(text):
        found, _ = outcome(findings, text)
        cluster, message = outcome(tf_config.loads, text)
        errors = [finding for finding in found if finding.severity == ERROR]

        assert {finding.effect for finding in found} <= {*EFFECTS}
        assert message == (f"TF_CONFIG {errors[0].message}" if errors else "")
        assert cluster is None or tf_config.loads(tf_config.dumps(cluster)) == cluster

    fuzz(check, CONFIG_TEXTS)


@pytest.mark.parametrize(
    "resolver", [*RESOLVERS, *RANK_RESOLVERS], ids=lambda resolver: resolver.name
)
def test_resolvers(resolver):
    outcomes = set()

    def check(env):
        if resolver.recognises(env):
            _, message = outcome(resolver.resolve, env)
            outcomes.add(bool(message))

    fuzz(check, environments([resolver.name]), examples=40)

    # It would not be a test if all were refused; what guards know is never enough.
    assert outcomes == ({True} if resolver in GUARDS else {True, False})


@pytest.mark.slow
def test_several_resolvers_at_once():
    names = [resolver.name for resolver in (*RESOLVERS, *RANK_RESOLVERS)]
    pairs = [(first, second) for first in names for second in names]

    def check(env):
        for function in (detect, detect_membership, explain):
            outcome(function, env)

    fuzz(check, st.sampled_from(pairs).flatmap(environments))
