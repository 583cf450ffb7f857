"""The examples with parameter servers: they learn as well as on one process."""

import os
import re
from pathlib import Path

import pytest
from launcher import COMMAND, printed_by

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
EPOCHS = 18


def printed_by_chief(folder, program, *options, ps, env=None):
    """Run an example with two workers; return the output of its chief."""
    printed_by(
        *(COMMAND, "run", "--workers=2", f"--ps={ps}", "--output-dir", folder),
        *(EXAMPLES / program, *options),
        env=env,
    )
    return (folder / "chief.log").read_text().replace("\r", "\n")


def only(pattern, printed):
    """Return the only match of a pattern."""
    (found,) = re.findall(pattern, printed, re.MULTILINE)
    return found


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    return {**os.environ, "TFDS_DATA_DIR": str(tmp_path_factory.mktemp("data"))}


@pytest.mark.parametrize(
    ("ps", "options", "batches", "most"),
    [
        # Of the 1,437 examples, 32 in a batch.
        (1, ["--consistency=async"], 45, None),
        (2, ["--consistency=bounded", "--max_staleness=1"], 45, 1),
        # Two workers share a batch of 64.
        (1, ["--consistency=sync"], 23, 0),
    ],
    ids=["async", "bounded", "sync"],
)
def test_two_workers_learn_the_digits(env, tmp_path, ps, options, batches, most):
    options = [f"--epochs={EPOCHS}", *options]
    printed = printed_by_chief(
        tmp_path, "digits_parameter_server.py", *options, ps=ps, env=env
    )

    assert float(only(r"^test accuracy: ([\d.]+)$", printed)) >= 0.97
    assert int(only(r"^steps: (\d+)$", printed)) == batches * EPOCHS
    staleness = re.findall(r"^updates that missed (\d+) others: (\d+)$", printed, re.M)
    assert sum(int(updates) for _, updates in staleness) == batches * EPOCHS
    assert most is None or max(int(missed) for missed, _ in staleness) <= most
    assert re.findall(r"^ps (\d): [\d,]+ bytes", printed, re.M) == ["0", "1"][:ps]
    others = [log for log in tmp_path.glob("*.log") if log.name != "chief.log"]
    assert len(others) == 2 + ps
    assert not any("accuracy" in log.read_text() for log in others)


def test_an_embedding_on_two_servers_learns_the_ratings(tmp_path):
    sizes = {"users": 2000, "movies": 300, "ratings": 60000, "factors": 8}
    sizes |= {"batch_size": 512, "learning_rate": 0.3, "min_shard_bytes": 4096}
    options = [f"--{name}={value}" for name, value in sizes.items()]
    printed = printed_by_chief(
        tmp_path, "embedding_parameter_server.py", *options, ps=2
    )

    guess = float(only(r"^error of the mean rating: ([\d.]+)$", printed))
    assert float(only(r"^test error: ([\d.]+)$", printed)) < 0.85 * guess
    shards = re.findall(r"^ +32,000 users/embeddings\[(\d+:\d+)\]$", printed, re.M)
    assert sorted(shards) == ["0:1000", "1000:2000"]
    assert all("users/embeddings[" in part for part in printed.split("ps 1: "))
