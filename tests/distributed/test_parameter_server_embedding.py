"""The embedding example: it learns, with its tables on two servers."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[2] / "examples" / "embedding_parameter_server.py"
COMMAND = Path(sys.executable).with_name("tfdist")
SMALL = [
    "--users=2000",
    "--movies=300",
    "--ratings=60000",
    "--factors=8",
    "--batch_size=512",
    "--learning_rate=0.3",
    "--min_shard_bytes=4096",
]


def only(pattern, printed):
    """Return what a pattern finds once."""
    (found,) = re.findall(pattern, printed, re.MULTILINE)
    return found


def test_it_learns_the_ratings(tmp_path):
    done = subprocess.run(
        [COMMAND, "run", "--workers", "2", "--ps", "2", "--output-dir", tmp_path]
        + [PROGRAM, *SMALL],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    printed = (tmp_path / "chief.log").read_text().replace("\r", "\n")

    guess = float(only(r"^error of the mean rating: ([\d.]+)$", printed))
    assert float(only(r"^test error: ([\d.]+)$", printed)) < 0.85 * guess
    shards = re.findall(r"^ +32,000 users/embeddings\[(\d+:\d+)\]$", printed, re.M)
    assert sorted(shards) == ["0:1000", "1000:2000"]
    first, second = printed.split("ps 1: ")
    assert "users/embeddings[" in first
    assert "users/embeddings[" in second
