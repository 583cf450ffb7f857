"""Addresses, lists of hosts and hostfiles, and Slurm's lists and distributions."""

import re

import pytest

from tfdist.cluster.address import is_loopback, split_address
from tfdist.cluster.hosts import (
    HostSlots,
    allocated_hosts,
    batch_hosts,
    deal,
    expand,
    expand_counts,
    format_hostfile,
    number_ports,
    parse_hostfile,
    parse_hosts,
)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("Node1.Example.ORG:1", "node1.example.org", 1),
        ("job_worker-0.svc:65535", "job_worker-0.svc", 65535),
        ("10.0.0.7:02222", "10.0.0.7", 2222),
        ("[FE80:0:0:0:0:0:0:1]:2222", "fe80::1", 2222),
        ("[fe80::1%eth0]:2222", "fe80::1%eth0", 2222),
    ],
)
def test_an_address_is_a_host_and_a_port(address, host, port):
    assert split_address(address) == (host, port)


@pytest.mark.parametrize(
    ("addresses", "message"),
    [
        (["node1", "", "node1:", "[::1]"], "has no port. Received: {!r}. Write it"),
        (
            ["node1:0", "node1:65536", "node1:-1", "node1:http", "node1:²"],
            "must end in a port from 1 to 65535. Received: {!r}. Use a port",
        ),
        (
            [":2222", "[]:2222", "::1:2222", "[::1:2222", "[node1]:2222"]
            + ["grpc://node1:2222", "a:1,b:1", " node1:2222", "'node1:22"]
            + ["a\x00:1", "a\u200b:1", "a\ud800:1", "a=1:1", "$HOST1:2222", "node1*4:1"]
            + ["-oProxyCommand=x:1", "-a:1", "a..b:1", f"{'a' * 64}:1"],
            'must be one bare "host:port". Received: {!r}. Write it as',
        ),
    ],
)
def test_a_malformed_address_is_refused(addresses, message):
    for address in addresses:
        expected = f"address {message.format(address)}"
        with pytest.raises(ValueError, match=f"^{re.escape(expected)}"):
            split_address(address)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        *((f"{host}:1", True) for host in ("LOCALHOST", "127.0.1.1", "[::1]")),
        *((f"{host}:1", False) for host in ("node1", "localhost.example")),
    ],
)
def test_loopback_hosts_are_known(address, expected):
    assert is_loopback(split_address(address)[0]) is expected


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", [("a", 1)]),
        ("b,a:02,Node-1.Example", [("b", 1), ("a", 2), ("Node-1.Example", 1)]),
        ("[::1]:4,[fe80::1]", [("[::1]", 4), ("[fe80::1]", 1)]),
    ],
)
def test_hosts_are_read_in_order(text, hosts):
    assert parse_hosts(text) == tuple(HostSlots(*host) for host in hosts)


NO_HOST = "must be a host, or a host and its slots, at least 1. Received: "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:4,,b:4", "entry 2 of -H is empty. Received: 'a:4,,b:4'. Leave out the"),
        ("a:4,::1", f"entry 2 of -H {NO_HOST}'::1'. Write it as"),
        ("a:4, b:4", f"entry 2 of -H {NO_HOST}' b:4'. Write it as"),
        ("user@a:4", f"entry 1 of -H {NO_HOST}'user@a:4'. Write it as"),
        *(
            (f"a:{slots}", f"entry 1 of -H {NO_HOST}'a:{slots}'. Write it as")
            for slots in ("", "0", "four", "999999", "2222:4")
        ),
        ("a,A:2", "entry 2 of -H repeats a host. Received: 'A:2' in 'a,A:2'. Write"),
        ("[::1],[0::1]", "entry 2 of -H repeats a host. Received: '[0::1]' in "),
    ],
)
def test_malformed_hosts_are_refused(text, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        parse_hosts(text)


def test_ports_are_counted_up_on_each_host():
    addresses = ("a:2222", "a:2223", "[::1]:2222", "b:2222")
    assert number_ports(parse_hosts("a:2,[::1],b"), 2222) == addresses
    assert number_ports(parse_hosts("a:2"), 65534) == ("a:65534", "a:65535")
    for port in (0, 65536):
        with pytest.raises(ValueError, match=f"^port must .* Received: port={port}. U"):
            number_ports(parse_hosts("a"), port)
    message = "^port leaves too few ports for the slots of b. Received: port=65534, 3"
    with pytest.raises(ValueError, match=message):
        number_ports(parse_hosts("a,b:3"), 65534)


# Lines with slots=, max_slots= or a repeated name are as Open MPI 4.1.4 has read them
# (`mpirun --display-allocation`), but for a single name, which it gives all its cores.
@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a slots=4 max_slots=4\nb slots=2\n", [("a", 4), ("b", 2)]),
        ("  a slots = 4 max-slots = 6 // x", [("a", 4)]),
        ("a\tslots=4\r\n", [("a", 4)]),
        ("a max_slots=4", [("a", 4)]),
        ("a max_slots=4 slots=2", [("a", 2)]),
        ("a\nb\nA\na", [("a", 3), ("b", 1)]),
        ("[::1]:4\n[::2] slots=2\n[::3]", [("[::1]", 4), ("[::2]", 2), ("[::3]", 1)]),
        ("# all of them\n\n   \n10.0.0.1\n", [("10.0.0.1", 1)]),
    ],
)
def test_a_hostfile_of_each_launcher_is_read(text, hosts):
    assert parse_hostfile(text) == tuple(HostSlots(*host) for host in hosts)
    assert parse_hostfile(format_hostfile(parse_hostfile(text))) == parse_hostfile(text)


LINE = (
    "must be a host, with slots=N and max_slots=N at most once, and slots at most "
    "max_slots. Received: "
)
REPEATED = "repeats a host that has a number of slots. Received: "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# a\n\n", "hostfile names no host. Received: nothing but blank lines and"),
        ("a slots=4\nb foo=1", f"line 2 of hostfile {LINE}'b foo=1'. Write it as"),
        *(
            (line, f"line 1 of hostfile {LINE}{line!r}. Write it as")
            for line in ("a 4", "a slots=4 slots=5", "a:4 slots=4", "a slots=0")
        ),
        ("a slots", f"line 1 of hostfile {LINE}'a slots'. Write it as"),
        ("a slots=4 max_slots=2", f"line 1 of hostfile {LINE}'a slots=4 max_slots=2'."),
        ("a,b", f"line 1 of hostfile {NO_HOST}'a,b'. Write it as \"node1 slots=4\""),
        ("me@a slots=4", f"line 1 of hostfile {NO_HOST}'me@a'. Write it as"),
        ("a\na slots=2", f"line 2 of hostfile {REPEATED}'a slots=2'. Write it"),
        ("a:2\nb\n A:2", f"line 3 of hostfile {REPEATED}'A:2'. Write it once"),
    ],
)
def test_malformed_hostfiles_are_refused(text, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        parse_hostfile(text)


# tests/distributed/test_slurm_node_lists.py compares more of them with `scontrol`.
@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node", "node"),
        ("n[1-3,7],m5", "n1 n2 n3 n7 m5"),
        ("n[5,3],n[3-4],n9", "n5 n3 n3 n4 n9"),
        ("n[1-2].b[3-4].org", "n1.b3.org n1.b4.org n2.b3.org n2.b4.org"),
        ("n[08-10]", "n08 n09 n10"),
        ("n[98-101]", "n98 n99 n100 n101"),
        (
            "a[1-2]b[1-2]c[1-2]",
            "a1b1c1 a1b1c2 a2b1c1 a2b1c2 a1b2c1 a1b2c2 a2b2c1 a2b2c2",
        ),
        ("a[1-2][3-4]", "a13 a14 a23 a24"),
        ("[1-2]", "1 2"),
    ],
)
def test_node_lists_are_expanded_as_slurm_does(text, hosts):
    assert expand(text) == tuple(hosts.split())


@pytest.mark.parametrize(
    "text",
    ["", "n1 n2", "n1,", "n1,,n2", "n[1-4", "n1]", "n[[1]]", "n[]", "n[1,,2]"]
    + ["n[1-2-3]", "n[3-1]", "n[a-b]", "n[\u0663]", "n[" + "0" * 5000 + "]", "n1:4"]
    + ["n[0-65536]", "n[1-999999999]", "a[1-999]b[1-999]", "n[1-60000],m[1-60000]"]
    + ["n" * 254, "[" * 100_000, "," * 100_000, "[0," * 30_000],
)
def test_a_malformed_node_list_is_refused_at_once(text):
    message = "^NODES must be a list of at most 65536 hosts. Received: .* Write it as S"
    with pytest.raises(ValueError, match=message) as error:
        expand(text, place="NODES")

    assert len(str(error.value)) < 400


def test_as_many_hosts_as_slurm_allows():
    assert len(expand("n[0-65535]")) == 65536
    assert len(expand("n" * 253)[0]) == 253


@pytest.mark.parametrize(
    ("text", "counts"),
    [("4", (4,)), ("1,2(x2),0(x1)", (1, 2, 2, 0)), ("1(x65536)", (1,) * 65536)],
)
def test_counts_are_expanded(text, counts):
    assert expand_counts(text) == counts


@pytest.mark.parametrize(
    "text",
    ["", "2,", "2x3", "2(x)", "(x3)", "-2", "\u0662", "9" * 5000, "2(x0)", "65537"]
    + ["1(x65536),1", "2(x999999999)"],
)
def test_malformed_counts_are_refused(text):
    message = r"^COUNTS must be a list of counts such as 2 or 2\(x3\), .* Separate the"
    with pytest.raises(ValueError, match=message):
        expand_counts(text, place="COUNTS")


# As `srun` of Slurm 22.05 has dealt them out, oversubscribed on three nodes.
@pytest.mark.parametrize(
    ("counts", "at_once", "nodes"),
    [
        ((2, 2), 2, (0, 0, 1, 1)),
        ((4, 4, 3), 1, (0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1)),
        ((4, 4, 3), 2, (0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2)),
        ((4, 4, 3), 3, (0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 1)),
        ((0, 3, 1), 1, (1, 2, 1, 1)),
    ],
)
def test_tasks_are_dealt_to_the_nodes(counts, at_once, nodes):
    places = deal(counts, at_once=at_once)

    assert tuple(node for node, _ in places) == nodes
    for node, count in enumerate(counts):
        assert [index for at, index in places if at == node] == [*range(count)]


def test_uneven_counts_take_no_longer():
    assert len(deal((1,) * 32_768 + (32_768,), at_once=1)) == 65_536


# Of a script of `sbatch --nodes=3 --ntasks=5`, as Slurm 22.05 sets them.
ENV = {
    "SLURM_JOB_NODELIST": "n[8-10]",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
    "SLURM_PROCID": "0",
}


def test_the_hosts_of_an_allocation():
    hosts = (HostSlots("n8", 2), HostSlots("n9", 2), HostSlots("n10", 1))
    assert allocated_hosts(ENV) == hosts
    assert allocated_hosts(ENV | {"SLURM_STEP_NUM_TASKS": "1"}) == hosts
    assert allocated_hosts(ENV | {"SLURM_STEP_NUM_TASKS": "5"}) is None
    assert allocated_hosts(ENV | {"SLURM_TASKS_PER_NODE": ""}) is None
    message = r"go together. Received: 'n\[8-10\]' with 3 nodes, '2' with 1. Do not ch"
    with pytest.raises(ValueError, match=message):
        allocated_hosts(ENV | {"SLURM_TASKS_PER_NODE": "2"})


@pytest.mark.parametrize(
    ("variable", "text", "system", "slots"),
    [
        ("PBS_NODEFILE", "n1\nn1\nn2\nn2\n", "PBS", {"n1": 2, "n2": 2}),
        # Of a machine whose script runs on a batch node, and of one without.
        ("LSB_DJOB_HOSTFILE", "b5\na\na\nc\nc\n", "LSF", {"a": 2, "c": 2}),
        ("LSB_DJOB_HOSTFILE", "a\nc\n", "LSF", {"a": 1, "c": 1}),
        ("LSB_DJOB_HOSTFILE", "a\na\n", "LSF", {"a": 2}),
        (
            "PE_HOSTFILE",
            "n1 4 all.q@n1 UNDEFINED\nn2 2 all.q@n2 UNDEFINED\nn1 2 s.q@n1 <NULL>\n",
            "Grid Engine",
            {"n1": 6, "n2": 2},
        ),
    ],
)
def test_the_hosts_of_a_batch_job(tmp_path, variable, text, system, slots):
    file = tmp_path / "hosts"
    file.write_text(text)

    hosts = tuple(HostSlots(*pair) for pair in slots.items())
    assert batch_hosts({variable: str(file)}) == (system, hosts)
    assert batch_hosts({variable: str(tmp_path / "away"), "HOME": "/"}) is None
