"""The script, read as Slurm would read it: what it asks for is the same cluster."""

import re
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster import Cluster
from tfdist.cluster.artefacts.program import Program
from tfdist.cluster.artefacts.sbatch import sbatch_script
from tfdist.cluster.resolvers import SlurmResolver

# `tests/conftest.py` hides from the garbage collector what Hypothesis looks for there.
pytestmark = pytest.mark.filterwarnings("ignore:It looks like `register_random`")


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


@settings(deadline=None, derandomize=True, database=None, max_examples=40)
@given(st.data())
def test_a_cluster_survives_the_round_trip(equal_hosts, on_hosts, data):
    cluster = on_hosts(data.draw(equal_hosts), data.draw(st.integers(1, 65_531)))

    script = sbatch_script(cluster, Program())

    for rank in range(cluster.size):
        seen = SlurmResolver().resolve(variables_of_task(script, rank))
        assert (seen.workers, seen.rank) == (cluster.workers, rank)


def test_the_command_is_for_the_shell(tmp_path):
    cluster = Cluster(workers=("a:1", "b:1"))
    script = sbatch_script(cluster, Program("mine", "sh -c 'echo $1' x \"$WORD\""))
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
            "Received: [fe80::1]. Use those",
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
def test_what_is_refused(workers, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        sbatch_script(Cluster(workers=workers), Program())
