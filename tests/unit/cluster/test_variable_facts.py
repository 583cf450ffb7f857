import re
from pathlib import Path

import pytest

from tfdist.cluster import detect
from tfdist.cluster.variable_facts import FACTS, fact_of

RESOLVERS = Path(detect.__code__.co_filename).with_name("resolvers")
# What a resolver looks at to see whether other launchers are there, and no more.
SIGNS = {"SLURM_NTASKS"}


def named_variables():
    """Return what looks like a variable in the code of the resolvers."""
    pattern = r'"((?:SLURM|SLURMD|TFDIST|TF|SM|HOROVOD|OMPI|PMI|PMIX|MPI)_[A-Za-z_]+)"'
    return {
        name
        for file in RESOLVERS.glob("*.py")
        for name in re.findall(pattern, file.read_text())
    }


@pytest.mark.parametrize("name", sorted(named_variables() - SIGNS))
def test_every_variable_of_a_resolver_tells_something(name):
    assert fact_of(name)


def test_nothing_is_said_of_others():
    assert fact_of("PATH") == ""
    assert {name for name in FACTS if name.startswith("SLURM")} <= named_variables()
