import re

import pytest

from tfdist.cluster.host_slots import HostSlots, number_ports, parse_hosts


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
NO_SLOTS = "must end in a number of slots, at least 1. Received: "
TWICE = "is a host that stands there already. Received: "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "entry 1 of -H is empty. Received: ''. Leave out the comma"),
        ("a:4,,b:4", "entry 2 of -H is empty. Received: ''. Leave out the comma"),
        ("a:4,", "entry 2 of -H is empty. Received: ''. Leave out the comma"),
        (":4", f"entry 1 of -H {NO_HOST}':4'. Write it as"),
        ("a:4,::1", f"entry 2 of -H {NO_HOST}'::1'. Write it as"),
        ("::1:4", f"entry 1 of -H {NO_HOST}'::1:4'. Write it as"),
        ("a:2222:4", f"entry 1 of -H {NO_HOST}'a:2222:4'. Write it as"),
        ("[a]:4", f"entry 1 of -H {NO_HOST}'[a]:4'. Write it as"),
        ("[::1:4", f"entry 1 of -H {NO_HOST}'[::1:4'. Write it as"),
        ("[::1]4", f"entry 1 of -H {NO_HOST}'[::1]4'. Write it as"),
        ("[]:4", f"entry 1 of -H {NO_HOST}'[]:4'. Write it as"),
        ("a:4, b:4", f"entry 2 of -H {NO_HOST}' b:4'. Write it as"),
        ("user@a:4", f"entry 1 of -H {NO_HOST}'user@a:4'. Write it as"),
        ("a slots=4", f"entry 1 of -H {NO_HOST}'a slots=4'. Write it as"),
        ("a:", f"entry 1 of -H {NO_SLOTS}'a:'. Write it as"),
        ("a:0", f"entry 1 of -H {NO_SLOTS}'a:0'. Write it as"),
        ("a:-1", f"entry 1 of -H {NO_SLOTS}'a:-1'. Write it as"),
        ("a:four", f"entry 1 of -H {NO_SLOTS}'a:four'. Write it as"),
        ("a:²", f"entry 1 of -H {NO_SLOTS}'a:²'. Write it as"),
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
        "Received: port=65534, 3 slots. Use a port up to 65533, or fewer slots."
    )
    with pytest.raises(ValueError, match=message):
        number_ports(parse_hosts("a,b:3"), 65534)


def test_more_slots_than_ports_are_refused():
    message = "Received: port=2222, 70000 slots. Use fewer slots.$"
    with pytest.raises(ValueError, match=message):
        number_ports(parse_hosts("a:70000"), 2222)
