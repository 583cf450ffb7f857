import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster.hosts.slots import (
    HostSlots,
    format_hostfile,
    number_ports,
    parse_hostfile,
    parse_hosts,
)

# `tests/conftest.py` hides from the garbage collector what Hypothesis looks for there.
pytestmark = pytest.mark.filterwarnings("ignore:It looks like `register_random`")


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", [("a", 1)]),
        ("a:4,b:4", [("a", 4), ("b", 4)]),
        ("b,a:2", [("b", 1), ("a", 2)]),
        ("[::1]:4,[fe80::1]", [("[::1]", 4), ("[fe80::1]", 1)]),
        ("10.0.0.1:2,Node-1.Example", [("10.0.0.1", 2), ("Node-1.Example", 1)]),
        ("a:01", [("a", 1)]),
    ],
)
def test_hosts_are_read_in_order(text, hosts):
    assert parse_hosts(text) == tuple(HostSlots(*host) for host in hosts)


NO_HOST = "must be a host, or a host and its slots. Received: "
NO_SLOTS = "must have a number of slots, at least 1. Received: "
TWICE = "repeats a host. Received: "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "entry 1 of -H is empty. Received: ''. Leave out the comma"),
        (
            "a:4,,b:4",
            "entry 2 of -H is empty. Received: 'a:4,,b:4'. Leave out the comma",
        ),
        ("a:4,", "entry 2 of -H is empty. Received: 'a:4,'. Leave out the comma"),
        (":4", f"entry 1 of -H {NO_HOST}':4'. Write it as"),
        ("a:4,::1", f"entry 2 of -H {NO_HOST}'::1'. Write it as"),
        ("a:2222:4", f"entry 1 of -H {NO_HOST}'a:2222:4'. Write it as"),
        ("a:4, b:4", f"entry 2 of -H {NO_HOST}' b:4'. Write it as"),
        ("user@a:4", f"entry 1 of -H {NO_HOST}'user@a:4'. Write it as"),
        ("a:", f"entry 1 of -H {NO_SLOTS}'a:'. Write it as"),
        ("a:0", f"entry 1 of -H {NO_SLOTS}'a:0'. Write it as"),
        ("a:four", f"entry 1 of -H {NO_SLOTS}'a:four'. Write it as"),
        ("a:999999", f"entry 1 of -H {NO_SLOTS}'a:999999'. Write it as"),
        ("a:2,b,a", f"entry 3 of -H {TWICE}'a' in 'a:2,b,a'. Write it once"),
        ("a,A:2", f"entry 2 of -H {TWICE}'A:2' in 'a,A:2'. Write it once"),
        ("[::1],[0::1]", f"entry 2 of -H {TWICE}'[0::1]' in '[::1],[0::1]'. Write"),
    ],
)
def test_malformed_hosts_are_refused(text, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        parse_hosts(text)


def test_the_error_names_the_option():
    with pytest.raises(ValueError, match="^entry 1 of --hosts is empty"):
        parse_hosts("", option="--hosts")


def test_ports_are_counted_up_on_each_host():
    assert number_ports(parse_hosts("a:3,[::1]:2,b"), 2222) == (
        "a:2222",
        "a:2223",
        "a:2224",
        "[::1]:2222",
        "[::1]:2223",
        "b:2222",
    )
    assert number_ports(parse_hosts("a:2"), 65534) == ("a:65534", "a:65535")


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_an_impossible_port_is_refused(port):
    message = f"^port must be from 1 to 65535. Received: port={port}. Use one"
    with pytest.raises(ValueError, match=message):
        number_ports(parse_hosts("a"), port)


def test_ports_must_reach():
    message = (
        "^port leaves too few ports for the slots of b. "
        "Received: port=65534, 3 slots. Use a lower port, or fewer slots."
    )
    with pytest.raises(ValueError, match=message):
        number_ports(parse_hosts("a,b:3"), 65534)


# Lines with slots=, max_slots= or a repeated name are as Open MPI 4.1.4 has read them
# (`mpirun --display-allocation`), but for a single name, which it gives all its cores.
@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a slots=4 max_slots=4\nb slots=2\n", [("a", 4), ("b", 2)]),
        ("a slots=4 max-slots=6  # x", [("a", 4)]),
        ("  a slots = 4 max_slots = 4 // x", [("a", 4)]),
        ("a\tslots=4\r\n", [("a", 4)]),
        ("a max_slots=4", [("a", 4)]),
        ("a max_slots=4 slots=2", [("a", 2)]),
        ("a\nb\na\na", [("a", 3), ("b", 1)]),
        ("a\nA", [("a", 2)]),
        ("a:4\nb:2", [("a", 4), ("b", 2)]),
        ("a:4\nb", [("a", 4), ("b", 1)]),
        ("[::1]:4\n[::2] slots=2\n[::3]", [("[::1]", 4), ("[::2]", 2), ("[::3]", 1)]),
        ("# all of them\n\n   \n10.0.0.1\n", [("10.0.0.1", 1)]),
    ],
)
def test_the_ways_to_write_it(text, hosts):
    assert parse_hostfile(text) == tuple(HostSlots(*host) for host in hosts)


LINE = "must be a host, with slots=N and max_slots=N at most once. Received: "
HOST = "must be a host, or a host and its slots. Received: "
TWICE_IN_FILE = "repeats a host that has a number of slots. Received: "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# a\n\n", "hostfile names no host. Received: nothing but blank lines and"),
        ("a slots=4\nb foo=1", f"line 2 of hostfile {LINE}'b foo=1'. Write it as"),
        ("a 4", f"line 1 of hostfile {LINE}'a 4'. Write it as"),
        ("a slots=4 slots=5", f"line 1 of hostfile {LINE}'a slots=4 slots=5'. Write"),
        ("a:4 slots=4", f"line 1 of hostfile {LINE}'a:4 slots=4'. Write it as"),
        ("a slots=0", f"line 1 of hostfile {NO_SLOTS}'slots=0'. Write it as"),
        ("a slots=\u0664", f"line 1 of hostfile {NO_SLOTS}'slots="),
        ("\n\na slots", f"line 3 of hostfile {NO_SLOTS}'slots'. Write it as"),
        ("a:0", f"line 1 of hostfile {NO_SLOTS}'a:0'. Write it as"),
        (
            "a slots=4 max_slots=2",
            "line 1 of hostfile has more slots than max_slots allows. "
            "Received: 'a slots=4 max_slots=2'. Lower the one",
        ),
        ("a,b", f"line 1 of hostfile {HOST}'a,b'. Write it as \"node1 slots=4\""),
        ("slots=4", f"line 1 of hostfile {HOST}'slots=4'. Write it as"),
        (
            "me@a slots=4",
            "line 1 of hostfile must be a host without a user. Received: 'me@a'. Leave",
        ),
        ("a slots=2\na", f"line 2 of hostfile {TWICE_IN_FILE}'a'. Write it once"),
        ("a\na slots=2", f"line 2 of hostfile {TWICE_IN_FILE}'a slots=2'. Write it"),
        ("a:2\nb\n A:2", f"line 3 of hostfile {TWICE_IN_FILE}'A:2'. Write it once"),
    ],
)
def test_malformed_hostfiles_are_refused(text, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        parse_hostfile(text)


def test_the_error_names_the_file():
    with pytest.raises(ValueError, match="^line 1 of --hostfile hosts must be a host"):
        parse_hostfile("a b", place="--hostfile hosts")


def test_what_is_written():
    text = format_hostfile([HostSlots("a", 4), HostSlots("[::1]")])

    assert text == "a slots=4\n[::1] slots=1\n"


@settings(deadline=None, derandomize=True, database=None)
@given(st.text(st.sampled_from("ab:[]=4 \n\t#@/slotmax_-²") | st.characters()))
def test_any_text_is_hosts_or_an_error_with_three_parts(text):
    message = ""
    try:
        hosts = parse_hostfile(text)
    except ValueError as error:
        hosts, message = (HostSlots("a"),), str(error)

    assert parse_hostfile(format_hostfile(hosts)) == hosts
    assert re.fullmatch(r"(.+\. Received: .+\. .+)?", message, re.DOTALL)
