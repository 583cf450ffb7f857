"""Each service has the TF_CONFIG of its own task, and all of them the same cluster."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster import Cluster
from tfdist.cluster.address import split_address
from tfdist.cluster.artefacts.compose import compose_file
from tfdist.cluster.artefacts.formats import format_artefact
from tfdist.cluster.artefacts.program import Program
from tfdist.cluster.tf_config import loads

# `tests/conftest.py` hides from the garbage collector what Hypothesis looks for there.
pytestmark = pytest.mark.filterwarnings("ignore:It looks like `register_random`")


@settings(deadline=None, derandomize=True, database=None, max_examples=40)
@given(st.data())
def test_a_cluster_survives_the_round_trip(clusters, data):
    cluster = data.draw(clusters)

    text = format_artefact(cluster, "compose", Program(image="registry/train:1"))

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

    (file,) = compose_file(Cluster(workers=("a:1",)), program)

    assert file["name"] == "mine"
    assert file["services"]["worker-0"]["image"] == "registry/train:1"
    # Compose makes a single $ of two.
    assert file["services"]["worker-0"]["command"] == [
        "python",
        "train.py",
        "--dir",
        "$$HOME/a b",
    ]
