import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster import Cluster
from tfdist.cluster.artefacts.formats import format_artefact
from tfdist.cluster.artefacts.mpijob import mpijob_manifests
from tfdist.cluster.artefacts.program import Program

# `tests/conftest.py` hides from the garbage collector what Hypothesis looks for there.
pytestmark = pytest.mark.filterwarnings("ignore:It looks like `register_random`")

PROGRAM = Program("mine", "python train.py --epochs 3", "registry/train:1")


@settings(deadline=None, derandomize=True, database=None, max_examples=40)
@given(st.data())
def test_hosts_and_slots_survive(equal_hosts, on_hosts, data):
    hosts = data.draw(equal_hosts)

    text = format_artefact(on_hosts(hosts), "mpijob", PROGRAM)

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
def test_what_is_refused(cluster, message):
    with pytest.raises(ValueError, match=message):
        mpijob_manifests(cluster, PROGRAM)
