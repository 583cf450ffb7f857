import socket
import struct

import pytest

from tfdist.rendezvous.wire import Reader, receive, send


@pytest.fixture
def pair():
    one, other = socket.socketpair()
    for end in (one, other):
        end.settimeout(120)
    yield one, other
    for end in (one, other):
        end.close()


SECONDS = 120


def framed(body):
    return struct.pack("!I", len(body)) + body


def test_messages_arrive_one_by_one(pair):
    message = {"kind": "hello", "rank": 3, "nested": [1.5, None, {"ü": "日本"}]}

    for sent in (message, {"i": 1}):
        send(pair[0], sent)

    assert receive(pair[1], SECONDS) == message
    assert receive(pair[1], SECONDS) == {"i": 1}


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        bytes.fromhex("1603010200010001fc0303"),
        framed(b"[1, 2]"),
        framed(b"[" * 10**6),
        framed(b'{"a":' * 10**5),
        framed(b"\xff\xfe"),
        framed(b'{"a": '),
        framed(b'{"a": %s}' % (b"1" * 5000)),
    ],
    ids=[
        *("http", "grpc", "tls", "list", "brackets", "braces", "bytes", "half"),
        "digits",
    ],
)
def test_what_is_no_message_of_ours_is_refused(data):
    with pytest.raises(
        ValueError,
        match=r"sent something that is not a tfdist message\. Received: b['\"].*"
        r"See which other program",
    ):
        Reader().feed(data)


def test_a_peer_that_goes_away_within_a_message_is_an_error(pair):
    pair[0].sendall(framed(b'{"a": 1}')[:-1])
    pair[0].close()

    with pytest.raises(ConnectionError, match="The peer closed the connection"):
        receive(pair[1], SECONDS)


def test_a_peer_that_trickles_is_waited_for_no_longer(pair):
    pair[0].sendall(b"\0\0")

    with pytest.raises(TimeoutError):
        receive(pair[1], 0.05)
