import pytest

from tfdist.cluster.address import is_loopback, split_address


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("node1:2222", "node1", 2222),
        ("Node1.Example.ORG:1", "node1.example.org", 1),
        ("job-worker-0.training.svc:65535", "job-worker-0.training.svc", 65535),
        ("10.0.0.7:02222", "10.0.0.7", 2222),
        ("[::1]:2222", "::1", 2222),
        ("[FE80:0:0:0:0:0:0:1]:2222", "fe80::1", 2222),
        ("[fe80::1%eth0]:2222", "fe80::1%eth0", 2222),
    ],
)
def test_an_address_is_taken_apart(address, host, port):
    assert split_address(address) == (host, port)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("node1", "address has no port. Received: 'node1'. Write it as"),
        ("", "address has no port. Received: ''. Write it as"),
        ("node1:", "address has no port. Received: 'node1:'. Write it as"),
        ("[::1]", r"address has no port. Received: '[::1]'. Write it as"),
        (":2222", "address has no host. Received: ':2222'. Write it as"),
        ("[]:2222", "address has no host. Received: '[]:2222'. Write it as"),
        ("node1:0", "must end in a port from 1 to 65535. Received: 'node1:0'. Use"),
        ("node1:65536", "from 1 to 65535. Received: 'node1:65536'. Use a port"),
        ("node1:-1", "from 1 to 65535. Received: 'node1:-1'. Use a port"),
        ("node1:http", "from 1 to 65535. Received: 'node1:http'. Use a port"),
        ("node1:2.5", "from 1 to 65535. Received: 'node1:2.5'. Use a port"),
        ("node1:²", "from 1 to 65535. Received: 'node1:²'. Use a port"),
        ("node1:" + "9" * 5000, "must end in a port from 1 to 65535. Received: "),
        ("::1:2222", "or an IPv6 host in brackets. Received: '::1:2222'. Write"),
        ("[::1:2222", "or an IPv6 host in brackets. Received: '[::1:2222'. Write"),
        ("node1:1:2", "a single colon, or an IPv6 host in brackets. Received: "),
        ("[node1]:2222", "IPv6 address in its brackets. Received: '[node1]:2222'. W"),
        ("grpc://node1:2222", "one bare \"host:port\". Received: 'grpc://node1:2222'"),
        ("a:1,b:1", "must be one bare \"host:port\". Received: 'a:1,b:1'. Leave out"),
        ("node1: 2222", "must be one bare \"host:port\". Received: 'node1: 2222'. Le"),
        ("'node1:2222'", 'must be one bare "host:port". Received: '),
    ],
)
def test_a_malformed_address_is_refused(address, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        split_address(address)
    assert message in str(error.value)


@pytest.mark.parametrize("address", [2222, None, ("node1", 2222), b"node1:2222"])
def test_an_address_is_a_string(address):
    with pytest.raises(TypeError, match='must be a string "host:port". Received: '):
        split_address(address)


@pytest.mark.parametrize("address", ["node1", ":1", "node1:0", "a:1:2", "[a]:1", "a b"])
def test_errors_name_the_place_that_was_given(address):
    with pytest.raises(ValueError, match=r"^cluster\.worker\[1\] "):
        split_address(address, place="cluster.worker[1]")


@pytest.mark.parametrize(
    "address",
    [
        "localhost:1",
        "LOCALHOST:1",
        "127.0.0.1:1",
        "127.0.1.1:1",
        "[::1]:1",
        "0.0.0.0:1",
    ],
)
def test_loopback_hosts_are_known(address):
    assert is_loopback(split_address(address)[0])


@pytest.mark.parametrize("host", ["node1", "10.0.0.1", "fe80::1", "localhost.example"])
def test_other_hosts_are_not_loopback(host):
    assert not is_loopback(host)


@pytest.mark.parametrize("address", ["a\x00:1", "a\u200b:1", "a\ud800:1", "a=1:1"])
def test_what_no_host_has_is_refused(address):
    with pytest.raises(ValueError, match='must be one bare "host:port". Received: '):
        split_address(address)
