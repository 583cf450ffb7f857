from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster.host_lists import expand, expand_counts

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


def outcome(function, text):
    """Return what a function makes of a text, or what it says against it."""
    try:
        return function(text), ""
    except ValueError as error:
        return None, str(error)


@PROPERTY
@given(texts("an019[]-, .x\n²(:", 24))
def test_any_text_is_a_list_of_hosts_or_an_error_in_three_parts(text):
    hosts, error = outcome(expand, text)

    if hosts is None:
        assert error.startswith("node list ")
        assert f"Received: {text!r}. " in error
    else:
        assert hosts
        assert all(hosts)


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


NUMBER = "must have a number such as 7 or a range such as 1-3 in its brackets, at "
BLANK = "has a blank, at character "
NAME = "lacks a name, at character "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty. Received: ''. Name at least one host."),
        (" ", f"{BLANK}1. Received: ' '. Separate the names by commas alone."),
        (" n1", f"{BLANK}1."),
        ("n1 ", f"{BLANK}3."),
        ("n1 n2", f"{BLANK}3."),
        ("n1, n2", f"{BLANK}4."),
        ("n1\n", f"{BLANK}3."),
        ("n[1-2] -ib", f"{BLANK}7."),
        (",", f"{NAME}1. Received: ','. Separate the names by single commas."),
        (",n1", f"{NAME}1."),
        ("n1,", f"{NAME}4."),
        ("n[1-2],", f"{NAME}8."),
        ("n1,,n2", f"{NAME}4."),
        ("n[1", "has a bracket that never closes, at character 2. Received: 'n[1'. W"),
        ("n[", "has a bracket that never closes, at character 2."),
        ("[", "has a bracket that never closes, at character 1."),
        ("a[1-2]b[3", "has a bracket that never closes, at character 8."),
        ("n[1-2,m3", "has a bracket that never closes, at character 2."),
        (
            "n1]",
            "closes a bracket that is not open, at character 3. Received: 'n1]'. O",
        ),
        ("]", "closes a bracket that is not open, at character 1."),
        ("n[1]]", "closes a bracket that is not open, at character 5."),
        ("n[[1]]", "a bracket within a bracket, at character 3. Received: 'n[[1]]'. C"),
        ("n[1,m[2]]", "has a bracket within a bracket, at character 6."),
        ("n[1,m[2", "has a bracket within a bracket, at character 6."),
        ("n[]", f"{NUMBER}character 3. Received: 'n[]'. Separate them by single comm"),
        ("n[,]", f"{NUMBER}character 3."),
        ("n[1,]", f"{NUMBER}character 5."),
        ("n[,1]", f"{NUMBER}character 3."),
        ("n[1,,2]", f"{NUMBER}character 5."),
        ("n[-]", f"{NUMBER}character 3."),
        ("n[-3]", f"{NUMBER}character 3."),
        ("n[3-]", f"{NUMBER}character 3."),
        ("n[1--3]", f"{NUMBER}character 3."),
        ("n[1-2-3]", f"{NUMBER}character 3."),
        ("n[7,1-2-3]", f"{NUMBER}character 5."),
        ("n[a-b]", f"{NUMBER}character 3."),
        ("n[1.5]", f"{NUMBER}character 3."),
        ("n[1 -2]", f"{NUMBER}character 3."),
        ("n[1, 2]", f"{NUMBER}character 5."),
        ("n[+1]", f"{NUMBER}character 3."),
        ("n[²]", f"{NUMBER}character 3."),
        ("n[٣]", f"{NUMBER}character 3."),
        ("n[000x133]", f"{NUMBER}character 3."),
        ("n[3-1]", "a range that ends before it begins, at character 3. Received: 'n["),
        ("n[5,10-9]", "has a range that ends before it begins, at character 5."),
        ("n[1-" + "9" * 19 + "]", "a number of more than 18 digits, at character 3."),
        (
            "n[" + "0" * 5000 + "]",
            "has a number of more than 18 digits, at character 3",
        ),
        ("n1:4", "has ':', which no name of a host has, at character 3. Received: 'n1"),
        ("n1;n2", "has ';', which no name of a host has, at character 3."),
        ("n(1-2)", "has '(', which no name of a host has, at character 2."),
        ("nöde", "has 'ö', which no name of a host has, at character 2."),
        ('"n1"', "has '\"', which no name of a host has, at character 1."),
        ("$NODES", "has '$', which no name of a host has, at character 1."),
        ("n[1-10000000]", "names more than 65536 hosts, at character 1. Received: 'n["),
        ("n[1-" + "9" * 18 + "]", "names more than 65536 hosts, at character 1."),
        ("a[1-999]b[1-999]", "names more than 65536 hosts, at character 1."),
        ("n[1-60000],m[1-60000]", "names more than 65536 hosts, at character 12."),
        ("n" * 254, "names a host with more than 253 characters, at character 1. Rece"),
        ("a," + "n" * 252 + "[9-10]", "a host with more than 253 characters, at chara"),
    ],
)
def test_a_malformed_list_has_its_own_error(text, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        expand(text, place="SLURM_STEP_NODELIST")

    assert str(error.value).startswith("SLURM_STEP_NODELIST ")
    assert message in str(error.value)
    assert len(str(error.value)) < 500


def test_as_many_hosts_as_slurm_allows():
    assert len(expand("n[0-65535]")) == 65536
    assert len(expand("n" * 253)[0]) == 253


@pytest.mark.parametrize("text", [None, 7, b"n1", ["n1"]])
@pytest.mark.parametrize("function", [expand, expand_counts])
def test_a_list_is_a_string(function, text):
    message = "^SLURM_X must be a string. Received: .* Write it as Slurm does: "
    with pytest.raises(TypeError, match=message):
        function(text, place="SLURM_X")


@PROPERTY
@given(st.lists(st.integers(0, 64), min_size=1, max_size=40))
def test_counts_that_are_compressed_expand_to_the_same(counts):
    groups = [(count, len([*group])) for count, group in groupby(counts)]
    text = ",".join(f"{count}(x{n})" if n > 1 else str(count) for count, n in groups)

    assert expand_counts(text) == tuple(counts)


@PROPERTY
@given(texts("0129(x),- ²", 16))
def test_any_text_is_a_list_of_counts_or_an_error_in_three_parts(text):
    counts, error = outcome(expand_counts, text)

    if counts is None:
        assert error.startswith("list of counts ")
        assert f"Received: {text!r}. " in error
    else:
        assert len(counts) > text.count(",")


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


COUNT = "must have a count such as 2 or 2(x3), at character "
TOO_MANY = "has more than 65536 nodes or tasks, at character "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"{COUNT}1. Received: ''. Separate the counts by single commas, without"),
        (" 2", f"{COUNT}1."),
        ("2,", f"{COUNT}3."),
        (",2", f"{COUNT}1."),
        ("2,,1", f"{COUNT}3."),
        ("1,2(3)", f"{COUNT}3."),
        ("2x3", f"{COUNT}1."),
        ("2(x)", f"{COUNT}1."),
        ("2(x3", f"{COUNT}1."),
        ("(x3)", f"{COUNT}1."),
        ("2(x-3)", f"{COUNT}1."),
        ("two", f"{COUNT}1."),
        ("-2", f"{COUNT}1."),
        ("2.0", f"{COUNT}1."),
        ("²", f"{COUNT}1."),
        ("9" * 5000, f"{COUNT}1."),
        ("2(x0)", "has a count for no nodes, at character 1. Received: '2(x0)'. Leave"),
        ("1,2(x0)", "has a count for no nodes, at character 3."),
        ("65537", f"{TOO_MANY}1. Received: '65537'. Use fewer nodes or tasks."),
        ("1(x65536),1", f"{TOO_MANY}11."),
        ("0(x65537)", f"{TOO_MANY}1."),
        ("2(x" + "9" * 18 + ")", f"{TOO_MANY}1."),
    ],
)
def test_malformed_counts_have_their_own_error(text, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        expand_counts(text, place="SLURM_STEP_TASKS_PER_NODE")

    assert str(error.value).startswith("SLURM_STEP_TASKS_PER_NODE ")
    assert message in str(error.value)
