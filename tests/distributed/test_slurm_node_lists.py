"""Node lists as Slurm itself expands them; `scontrol` needs no daemon for that."""

import os
import random
import subprocess

import pytest

from tfdist.cluster.hosts import expand

pytestmark = [pytest.mark.requires("scontrol"), pytest.mark.slow]

LISTS = [
    "node",
    "n[8-10]",
    "n[1-3,7],m5",
    "n[5,3,4]",
    "n[8-9],n[9-10],n9",
    "n[7,7]",
    "n[8-010]",
    "n[08-10]",
    "n[008-10]",
    "n[00-2]",
    "n[98-101,0098-101]",
    "r[1-2]n[01-03]",
    "a[1-2][3-4]",
    "a[1-2]b[1-2]c[1-2]",
    "a[1-2]b[1,3]c[7,5]d[2-3]",
    "10.0.0.[9-10],a.b.example.org",
    "[1-2]",
    "N1,n1,n_1,n-1",
    "n[0-65535]",
]


@pytest.fixture(scope="module")
def expanded_by_slurm(tmp_path_factory):
    """Return a function that gives the hosts of a list as `scontrol` shows them."""
    config = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    config.write_text("ClusterName=tests\nSlurmctldHost=localhost\n")

    def hosts(text):
        done = subprocess.run(
            ["scontrol", "show", "hostnames", text],
            env={**os.environ, "SLURM_CONF": str(config)},
            capture_output=True,
            text=True,
            check=True,
            timeout=1200,
        )
        return tuple(done.stdout.split())

    return hosts


@pytest.mark.parametrize("text", LISTS)
def test_lists_expand_as_slurm_expands_them(text, expanded_by_slurm):
    assert expand(text) == expanded_by_slurm(text)


@pytest.mark.parametrize("seed", range(20))
def test_random_lists_expand_as_slurm_expands_them(seed, expanded_by_slurm):
    text = random_list(random.Random(seed))

    assert expand(text) == expanded_by_slurm(text)


def random_list(draw):
    """Return some names, each with brackets of ranges in it or not."""
    names = []
    for _ in range(draw.randint(1, 6)):
        brackets = draw.randint(0, 3)
        name = "".join(draw.choice("abn.-_") + bracket(draw) for _ in range(brackets))
        names.append(name or draw.choice(["login", "n17", "a.b"]))
    return ",".join(names)


def bracket(draw):
    """Return a bracket with numbers and ranges, with zeros before them or not."""
    parts = []
    for _ in range(draw.randint(1, 4)):
        first = draw.randint(0, 120)
        last = first + draw.randint(0, 5)
        width = draw.randint(1, 4)
        parts.append(
            draw.choice([f"{first:0{width}}", f"{first:0{width}}-{last:0{width}}"])
        )
    return f"[{','.join(parts)}]"
