from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster.hosts.slots import HostSlots
from tfdist.cluster.hosts.slurm import (
    allocated_hosts,
    deal,
    expand,
    expand_counts,
    places_on_nodes,
)

# `tests/conftest.py` hides from the garbage collector what Hypothesis looks for there.
pytestmark = pytest.mark.filterwarnings("ignore:It looks like `register_random`")

# The same examples in every run, and no files; CI's machines may be slow.
PROPERTY = settings(max_examples=300, deadline=None, derandomize=True, database=None)


def texts(characters, most, least=0):
    """Texts of these characters; `st.text` would write tables to the disk."""
    sampled = st.lists(st.sampled_from(characters), min_size=least, max_size=most)
    return sampled.map("".join)


PREFIXES = texts("abn9._-", 6, least=1)
SUFFIXES = st.sampled_from(["", "-ib", ".example.org", "b"])
STEMS = st.tuples(PREFIXES, SUFFIXES, st.integers(1, 4))
NUMBERS = st.lists(st.integers(0, 300), min_size=1, max_size=12)


def compress(names):
    """Write (stem, number) as Slurm does, with runs of numbers in brackets."""
    parts = []
    for (prefix, suffix, width), group in groupby(names, key=lambda name: name[0]):
        runs = []
        for _, number in group:
            if runs and number == runs[-1][1] + 1:
                runs[-1][1] = number
            else:
                runs.append([number, number])
        written = [
            f"{first:0{width}}" + (f"-{last:0{width}}" if last > first else "")
            for first, last in runs
        ]
        parts.append(f"{prefix}[{','.join(written)}]{suffix}")
    return ",".join(parts)


@PROPERTY
@given(st.lists(st.tuples(STEMS, NUMBERS), min_size=1, max_size=6))
def test_what_is_compressed_expands_to_the_same_hosts_in_the_same_order(groups):
    names = [(stem, number) for stem, numbers in groups for number in numbers]
    hosts = [
        f"{prefix}{number:0{width}}{suffix}"
        for (prefix, suffix, width), number in names
    ]

    assert list(expand(compress(names))) == hosts


@PROPERTY
@given(NUMBERS, NUMBERS)
def test_of_two_brackets_the_last_changes_first(racks, nodes):
    text = f"r[{','.join(map(str, racks))}]n[{','.join(map(str, nodes))}]"

    assert expand(text) == tuple(f"r{r}n{n}" for r in racks for n in nodes)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node", "node"),
        ("n[8-10]", "n8 n9 n10"),
        ("n[1-3,7],m5", "n1 n2 n3 n7 m5"),
        ("n[5,3,4]", "n5 n3 n4"),
        ("n[8-9],n[9-10],n9", "n8 n9 n9 n10 n9"),
        ("n[7,7]", "n7 n7"),
        ("n[1-2]-ib", "n1-ib n2-ib"),
        ("n[1-2].b[3-4].org", "n1.b3.org n1.b4.org n2.b3.org n2.b4.org"),
        ("r[1-2]n[01-03]", "r1n01 r1n02 r1n03 r2n01 r2n02 r2n03"),
        ("n[008-010]", "n008 n009 n010"),
        ("n[08-10]", "n08 n09 n10"),
        ("n[8-010]", "n8 n9 n10"),
        ("n[00-2]", "n00 n01 n02"),
        ("n[98-101]", "n98 n99 n100 n101"),
        (
            "a[1-2]b[1-2]c[1-2]",
            "a1b1c1 a1b1c2 a2b1c1 a2b1c2 a1b2c1 a1b2c2 a2b2c1 a2b2c2",
        ),
        ("a[1-2][3-4]", "a13 a14 a23 a24"),
        ("10.0.0.[9-10]", "10.0.0.9 10.0.0.10"),
        ("[1-2]", "1 2"),
        ("N1,n1,n_1", "N1 n1 n_1"),
    ],
)
def test_lists_as_slurm_writes_them(text, hosts):
    assert expand(text) == tuple(hosts.split())


WHERE = "is not a list of hosts, at character"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"{WHERE} 1. Received: ''. Write it as Slurm does: "),
        ("n1 n2", f"{WHERE} 3."),
        ("n1,", f"{WHERE} 4."),
        ("n1,,n2", f"{WHERE} 4."),
        ("n[1-4", f"{WHERE} 2."),
        ("n1]", f"{WHERE} 3."),
        ("n[[1]]", f"{WHERE} 2."),
        ("n[]", f"{WHERE} 2."),
        ("n[1,,2]", f"{WHERE} 2."),
        ("n[1-2-3]", f"{WHERE} 2."),
        ("n[3-1]", f"{WHERE} 2."),
        ("n[a-b]", f"{WHERE} 2."),
        ("n[\u0663]", f"{WHERE} 2."),
        ("n[" + "0" * 5000 + "]", f"{WHERE} 2."),
        ("n1:4", f"{WHERE} 3."),
        ("(null)", f"{WHERE} 1."),
        ("n[1-10000000]", "names more than 65536 hosts. Received: 'n["),
        ("n[1-" + "9" * 18 + "]", "names more than 65536 hosts."),
        ("a[1-999]b[1-999]", "names more than 65536 hosts."),
        ("n[1-60000],m[1-60000]", "names more than 65536 hosts."),
        ("n" * 254, "names a host with more than 253 characters. Received: "),
    ],
)
def test_a_malformed_list_is_refused(text, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        expand(text, place="SLURM_STEP_NODELIST")

    assert str(error.value).startswith(f"SLURM_STEP_NODELIST {message}")
    assert len(str(error.value)) < 500


def test_as_many_hosts_as_slurm_allows():
    assert len(expand("n[0-65535]")) == 65536
    assert len(expand("n" * 253)[0]) == 253


@PROPERTY
@given(st.lists(st.integers(0, 64), min_size=1, max_size=40))
def test_counts_that_are_compressed_expand_to_the_same(counts):
    groups = [(count, len([*group])) for count, group in groupby(counts)]
    text = ",".join(f"{count}(x{n})" if n > 1 else str(count) for count, n in groups)

    assert expand_counts(text) == tuple(counts)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("4", (4,)),
        ("2(x3),1", (2, 2, 2, 1)),
        ("1,2(x2),1", (1, 2, 2, 1)),
        ("2(x1)", (2,)),
        ("1(x65536)", (1,) * 65536),
        ("65536", (65536,)),
    ],
)
def test_counts_as_slurm_writes_them(text, counts):
    assert expand_counts(text) == counts


COUNT = "must be a list of counts such as 2 or 2(x3). Received: "
TOO_MANY = "has more than 65536 nodes or tasks. Received: "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"{COUNT}''. Separate the counts by single commas, without"),
        *((text, COUNT) for text in ("2,", "2,,1", "2x3", "2(x)", "(x3)", "-2")),
        *((text, COUNT) for text in ("two", "\u0662", "9" * 5000, "2(x0)")),
        ("65537", f"{TOO_MANY}'65537'. Use fewer nodes or tasks."),
        ("1(x65536),1", TOO_MANY),
        ("2(x" + "9" * 18 + ")", TOO_MANY),
    ],
)
def test_malformed_counts_are_refused(text, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        expand_counts(text, place="SLURM_STEP_TASKS_PER_NODE")

    assert str(error.value).startswith(f"SLURM_STEP_TASKS_PER_NODE {message}")


COUNTS = st.lists(st.integers(0, 9), max_size=8).map(tuple)


# As `srun` of Slurm 22.05 has dealt them out, oversubscribed on three nodes.
@pytest.mark.parametrize(
    ("counts", "at_once", "nodes"),
    [
        ((2, 2), 2, (0, 0, 1, 1)),
        ((2, 2), 1, (0, 1, 0, 1)),
        ((4, 4, 3), 4, (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2)),
        ((4, 4, 3), 1, (0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1)),
        ((4, 4, 3), 2, (0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2)),
        ((4, 4, 3), 3, (0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 1)),
        ((3, 1, 2), 1, (0, 1, 2, 0, 2, 0)),
        ((0, 2), 2, (1, 1)),
        ((), 1, ()),
    ],
)
def test_tasks_go_round_the_nodes(counts, at_once, nodes):
    assert deal(counts, at_once=at_once) == nodes


@settings(deadline=None, derandomize=True, database=None)
@given(COUNTS, st.integers(1, 10))
def test_every_node_gets_its_tasks(counts, at_once):
    nodes = deal(counts, at_once=at_once)

    assert tuple(nodes.count(node) for node in range(len(counts))) == counts
    for node, count in enumerate(counts):
        places = zip(nodes, places_on_nodes(nodes), strict=True)
        assert [place for at, place in places if at == node] == [*range(count)]


def test_the_work_is_that_of_the_tasks_however_uneven_they_are():
    counts = (1,) * 32_768 + (32_768,)

    assert len(deal(counts, at_once=1)) == 65_536


def test_places_count_from_zero_on_each_node():
    assert places_on_nodes((1, 0, 1, 1)) == (0, 0, 1, 2)


# Of a script of `sbatch --nodes=3 --ntasks=5`, as Slurm 22.05 sets them.
ENV = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[8-10]",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
    "SLURM_NTASKS": "5",
}


def test_the_script_of_a_job_sees_its_hosts():
    hosts = (HostSlots("n8", 2), HostSlots("n9", 2), HostSlots("n10", 1))

    assert allocated_hosts(ENV) == hosts
    # `salloc` starts its shell as a step with one task on some clusters.
    assert allocated_hosts(ENV | {"SLURM_STEP_NUM_TASKS": "1"}) == hosts


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"SLURM_JOB_NODELIST": "n8"},
        {"SLURM_TASKS_PER_NODE": "2"},
        ENV | {"SLURM_STEP_NUM_TASKS": "5"},
    ],
)
def test_elsewhere_there_are_none(env):
    assert allocated_hosts(env) is None


def test_the_environment_is_that_of_the_process(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "3")

    assert allocated_hosts() == (HostSlots("n1", 3),)


def test_variables_that_contradict_each_other_are_refused():
    message = (
        r"^SLURM_JOB_NODELIST and SLURM_TASKS_PER_NODE do not go together. "
        r"Received: 'n\[8-10\]' with 3 nodes, '2' with 1. Do not change"
    )
    with pytest.raises(ValueError, match=message):
        allocated_hosts(ENV | {"SLURM_TASKS_PER_NODE": "2"})
