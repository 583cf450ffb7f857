import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster import Cluster
from tfdist.cluster.artefacts.formats import ARTEFACTS, format_artefact
from tfdist.cluster.artefacts.program import Program
from tfdist.cluster.host_slots import number_ports
from tfdist.cluster.hostfile import parse_hostfile

# `tests/conftest.py` hides from the garbage collector what Hypothesis looks for there.
pytestmark = pytest.mark.filterwarnings("ignore:It looks like `register_random`")

TWO = Cluster(workers=("a:2222", "b:2222"))


@settings(deadline=None, derandomize=True, database=None, max_examples=40)
@given(st.data())
def test_a_hostfile_survives_the_round_trip(hosts, on_hosts, data):
    cluster = on_hosts(data.draw(hosts))

    text = format_artefact(cluster, "hostfile", Program())

    assert number_ports(parse_hostfile(text), 2222) == cluster.workers


@pytest.mark.parametrize("form", ARTEFACTS)
def test_each_holds_what_it_says(form):
    program = Program("some-name", "some command", "some/image")

    text = format_artefact(TWO, form, program)

    assert text.endswith("\n")
    assert ("some-name" in text) == ("name" in ARTEFACTS[form])
    assert ("some/image" in text) == ("image" in ARTEFACTS[form])
    assert ("command" in text) == ("command" in ARTEFACTS[form])


@pytest.mark.parametrize("form", ["kubernetes", "tfjob", "mpijob", "compose"])
def test_containers_need_an_image(form):
    message = (
        f"--image must say what the containers of --to {form} are made of. "
        "Received: no --image. Give an image"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        format_artefact(TWO, form, Program())


def test_another_form_is_refused():
    message = (
        "^form must be one of hostfile, sbatch, kubernetes, tfjob, mpijob, compose. "
        "Received: form='helm'. Use sbatch"
    )
    with pytest.raises(ValueError, match=message):
        format_artefact(TWO, "helm", Program())
