"""Host lists of `-H` that no cluster can be made of."""

import pytest

HOSTS = [
    ("", "entry 1 of -H is empty."),
    ("a,", "entry 2 of -H is empty."),
    ("a:", "entry 1 of -H must end in a number of slots, at least 1."),
    ("a:0", "entry 1 of -H must end in a number of slots, at least 1."),
    ("a:-1", "entry 1 of -H must end in a number of slots, at least 1."),
    ("a:two", "entry 1 of -H must end in a number of slots, at least 1."),
    ("a:1.5", "entry 1 of -H must end in a number of slots, at least 1."),
    ("a:4:2", "entry 1 of -H must be a host, or a host and its slots."),
    ("a:99999", "port leaves too few ports for the slots of a."),
    ("a:100000", "entry 1 of -H must end in a number of slots, at least 1."),
    ("a:\u0664", "entry 1 of -H must end in a number of slots, at least 1."),
    ("a,a", "entry 2 of -H is a host that stands there already."),
    ("a:2,A:2", "entry 2 of -H is a host that stands there already."),
    ("a b", "entry 1 of -H must be a host, or a host and its slots."),
    ("a;b", "entry 1 of -H must be a host, or a host and its slots."),
    (" a", "entry 1 of -H must be a host, or a host and its slots."),
    ("::1", "entry 1 of -H must be a host, or a host and its slots."),
    ("[::1", "entry 1 of -H must be a host, or a host and its slots."),
    ("[a]:2", "entry 1 of -H must be a host, or a host and its slots."),
    ("[::1]:x", "entry 1 of -H must end in a number of slots, at least 1."),
    ("[::1],[0:0::1]:2", "entry 2 of -H is a host that stands there already."),
    ("a/24", "entry 1 of -H must be a host, or a host and its slots."),
    ("user@a:2", "entry 1 of -H must be a host, or a host and its slots."),
    ("a:2222:x", "entry 1 of -H must be a host, or a host and its slots."),
    (":4", "entry 1 of -H must be a host, or a host and its slots."),
    ("a=4", "entry 1 of -H must be a host, or a host and its slots."),
    ("a slots=4", "entry 1 of -H must be a host, or a host and its slots."),
    (
        "localhost,a",
        "cluster.worker[0] is on localhost, where processes on other hosts cannot",
    ),
    ("'a'", "entry 1 of -H must be a host, or a host and its slots."),
    ("[]:1", "entry 1 of -H must be a host, or a host and its slots."),
    ("a\n", "entry 1 of -H must be a host, or a host and its slots."),
    ("n[1-4]:2", "entry 1 of -H must be a host, or a host and its slots."),
]


FILES = [
    ("", "names no host."),
    ("# nothing\n\n", "names no host."),
    ("a slots=0", "line 1 of --hostfile"),
    ("a\nb slots=x", "line 2 of --hostfile"),
    ("a slots", "line 1 of --hostfile"),
    ("a slots=2 slots=3", "line 1 of --hostfile"),
    ("a cores=2", "line 1 of --hostfile"),
    ("a b c", "line 1 of --hostfile"),
    ("a:2\na:2", "line 2 of --hostfile"),
    ("a slots=2\na", "line 2 of --hostfile"),
    ("a max_slots=1 slots=2", "line 1 of --hostfile"),
    ("me@a", "line 1 of --hostfile"),
    ("[::1", "line 1 of --hostfile"),
    ("a,b", "line 1 of --hostfile"),
    ("a slots=\u0664", "line 1 of --hostfile"),
]


@pytest.mark.parametrize(("text", "problem"), FILES)
def test_hostfiles(text, problem, refusal, tmp_path):
    file = tmp_path / "hosts"
    file.write_text(text)

    assert problem in refusal("run", "--hostfile", str(file), "true")


@pytest.mark.parametrize(("hosts", "problem"), HOSTS)
def test_hosts(hosts, problem, refusal):
    assert problem in refusal("config", "build", "-H", hosts, "--index", "0")


def test_no_two_are_refused_in_the_same_words(refusal):
    messages = [
        refusal("config", "build", "-H", hosts, "--index", "0") for hosts, _ in HOSTS
    ]

    assert len({*messages}) == len(messages)
