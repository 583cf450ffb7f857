import re
import resource
import socket
import socketserver
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from tfdist.cluster import Cluster, Task
from tfdist.cluster.launcher import Launcher, start_timeout
from tfdist.launching.machine import free_ports
from tfdist.liveness.lifeline import monitor
from tfdist.rendezvous import handshake, presence
from tfdist.rendezvous import secret as secret_module
from tfdist.rendezvous.roll_call import call_roll, open_door
from tfdist.rendezvous.secret import proof_of
from tfdist.rendezvous.wire import receive, send

SECONDS = 120
NONCE = "0" * 32


def addresses_of(size):
    return tuple(f"127.0.0.1:{port}" for port in free_ports(size))


def cluster_of(addresses, rank, run_id=""):
    return Cluster(workers=addresses, task=Task("worker", rank), run_id=run_id)


def join(cluster, **options):
    return monitor(call_roll(cluster, **options), lambda text: None, 600.0)


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Let no end of a connection give up because the other's thread is late."""
    monkeypatch.setattr(handshake, "_ACKNOWLEDGE_SECONDS", SECONDS)


@pytest.fixture
def calls():
    """Start the roll-call of ranks in threads; end what they have joined."""
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(8))
        started = []

        def start(addresses, rank, run_id="", **options):
            options = {"start_timeout_seconds": SECONDS, **options}
            cluster = cluster_of(addresses, rank, run_id)
            started.append(pool.submit(join, cluster, **options))
            return started[-1]

        yield start
        for future in started:
            if future.exception(2 * SECONDS) is None:
                future.result().close()


@pytest.fixture
def goes_on(calls):
    """Start rank 0 of two; whatever happens in the block, rank 1 joins it after."""

    @contextmanager
    def begun(**options):
        addresses = addresses_of(2)
        chief = calls(addresses, 0, **options)
        yield addresses
        calls(addresses, 1, **options).result(SECONDS)
        assert chief.result(SECONDS)

    return begun


def knock(address):
    """Connect to the roll-call as soon as it listens."""
    host, port = address.split(":")
    while True:
        try:
            return socket.create_connection((host, int(port)), timeout=SECONDS)
        except ConnectionRefusedError:
            continue


def is_hung_up(connection):
    """Tell whether the other side closes without a word."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def hello(connection, secret="\0"):
    """Answer the challenge of rank 0; return its reply."""
    theirs = receive(connection, SECONDS)["nonce"]
    proof = proof_of(secret, "caller", NONCE, theirs)
    send(connection, {"kind": "hello", "nonce": NONCE, "proof": proof})
    return receive(connection, SECONDS)


def confirm(connection, addresses, rank):
    addresses = list(addresses)
    who = {"rank": rank, "addresses": addresses, "pid": 77, "host": "there"}
    send(connection, {"kind": "confirm", **who})


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_all_that_are_present_are_joined(calls, order):
    addresses = addresses_of(3)
    futures = {rank: calls(addresses, rank) for rank in order}
    joined = {rank: future.result(SECONDS) for rank, future in futures.items()}

    with ThreadPoolExecutor() as pool:
        values = [pool.submit(joined[r].exchange, "x", f"of {r}") for r in range(3)]

        assert [value.result(SECONDS) for value in values] == [
            ["of 0", "of 1", "of 2"]
        ] * 3


@pytest.mark.usefixtures("late_after_one_caller")
def test_every_rank_that_is_present_hears_who_is_missing(calls):
    addresses = addresses_of(3)
    futures = [calls(addresses, rank) for rank in (0, 2)]

    zero, one, two = (re.escape(f"(worker {r}, {addresses[r]})") for r in range(3))
    for future in futures:
        with pytest.raises(
            TimeoutError,
            match=r"Only 2 of 3 processes have answered the roll-call after 120 s\. "
            rf"Present: rank 0 {zero}; rank 2 {two}\. Missing: rank 1 {one}\. "
            r"Check that each of the missing was started, with the same cluster and "
            r"its own task index, and that all ranks can reach rank 0 at "
            f"{addresses[0]}",
        ):
            future.result(SECONDS)


def test_a_host_whose_name_is_unknown_is_said_to_be(calls, monkeypatch):
    def unknown(host, port):
        raise socket.gaierror("no such name")

    addresses = addresses_of(2)
    monkeypatch.setattr(handshake, "_LOOK_UP_SECONDS", SECONDS)
    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", unknown)
        future = calls(addresses, 0, start_timeout_seconds=0.2)

        with pytest.raises(
            TimeoutError,
            match=rf"Missing: rank 1 \(worker 1, {addresses[1]}\): the name "
            r"'127\.0\.0\.1' is not known \(no such name\)",
        ):
            future.result(SECONDS)


def test_callers_do_not_wait_for_a_name_server(calls, monkeypatch):
    answers = threading.Event()
    addresses = addresses_of(2)
    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", lambda host, port: answers.wait())
        future = calls(addresses, 0, start_timeout_seconds=0.2)
        with pytest.raises(
            TimeoutError, match=r"Missing: rank 1 \(worker 1, [^)]*\)\."
        ):
            future.result(SECONDS)
        answers.set()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_other_hosts_may_come_by_both_protocols(host):
    door, _ = open_door(is_local=False)
    with door, socket.create_connection((host, door.getsockname()[1]), SECONDS):
        door.accept()[0].close()


def test_another_program_at_the_address_of_the_chief_is_no_answer(calls):
    addresses = addresses_of(2)
    port = int(addresses[0].split(":")[1])

    class Server(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.sendall(framed(b'{"kind": "welcome"}'))

    with socketserver.TCPServer(("127.0.0.1", port), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        future = calls(addresses, 1, start_timeout_seconds=1.0)

        with pytest.raises(
            TimeoutError, match=r"not answered .*something else answers there"
        ):
            future.result(SECONDS)
        server.shutdown()


def test_two_processes_of_one_rank_are_an_error_on_all(calls):
    addresses = addresses_of(4)
    futures = [calls(addresses, 0)]
    with knock(addresses[0]) as third:
        assert hello(third)["kind"] == "present"
        confirm(third, addresses, 3)
        futures += [calls(addresses, 1), calls(addresses, 1)]

        text = (
            rf"Two processes are rank 1 \(worker 1, {addresses[1]}\)\. Received: the "
            r"second from process \d+ on .*\. Give every process its own task index"
        )
        for future in futures:
            with pytest.raises(RuntimeError, match=text):
                future.result(SECONDS)
        assert re.search(text, receive(third, SECONDS)["text"])


def test_different_clusters_are_an_error_on_all(calls):
    addresses, port = addresses_of(2), free_ports(1)[0]
    others = (*addresses, f"127.0.0.1:{port}")
    futures = [calls(addresses, 0), calls(others, 1)]

    for future in futures:
        with pytest.raises(
            RuntimeError,
            match=r"The ranks have different clusters\. Received: "
            rf"\['{addresses[0]}', '{addresses[1]}'\] on rank 0, \[.*{port}'\] on rank "
            r"1 \(process \d+ on .*\)\. Give every process the same cluster",
        ):
            future.result(SECONDS)


def test_a_process_of_another_run_is_sent_away_and_the_roll_call_goes_on(
    calls, goes_on
):
    with goes_on(run_id="mine") as addresses:
        message = (
            rf"rank 0 \(worker 0, {addresses[0]}\) belongs to another run, or has "
            r"another TFDIST_SECRET\. Received: no proof of it for rank 1 \(worker 1, "
            rf"{addresses[1]}\), process \d+ on .*\. Give each run ports of its own, "
            "and all processes of a run the same secret"
        )
        with pytest.raises(RuntimeError, match=message):
            calls(addresses, 1, run_id="other").result(SECONDS)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_port_in_use_is_named(rank):
    addresses = addresses_of(2)
    port = int(addresses[rank].split(":")[1])
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(
            OSError,
            match=r"cannot listen at its own address: .*in use.*Received: "
            rf"rank {rank} \(worker {rank}, {addresses[rank]}\)\. Stop what uses",
        ),
    ):
        call_roll(cluster_of(addresses, rank))


def framed(body):
    return struct.pack("!I", len(body)) + body


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        framed(b'{"kind": "hello"}'),
        framed(b"[" * 4000),
        struct.pack("!I", 4097),
    ],
    ids=["http", "no proof", "brackets", "large"],
)
def test_a_stranger_does_not_end_the_roll_call(goes_on, data):
    with goes_on() as addresses, knock(addresses[0]) as stranger:
        assert receive(stranger, SECONDS)["kind"] == "challenge"
        stranger.sendall(data)
        assert is_hung_up(stranger)


@pytest.mark.parametrize("rank", [2, {}, None])
def test_a_rank_that_does_not_exist_is_sent_away(goes_on, rank):
    with goes_on() as addresses, knock(addresses[0]) as caller:
        assert hello(caller)["proof"]
        confirm(caller, addresses, rank)
        assert is_hung_up(caller)


def test_who_does_not_know_the_secret_is_not_let_in(goes_on, monkeypatch):
    monkeypatch.setenv("TFDIST_SECRET", "ours")
    with goes_on(run_id="run") as addresses:
        for secret in ("", "theirs", "\0run", "theirs\0run"):
            with knock(addresses[0]) as stranger:
                assert hello(stranger, secret) == {"kind": "present", "proof": ""}
                assert is_hung_up(stranger)


def test_a_stranger_at_the_address_of_rank_0_is_told_nothing(calls, monkeypatch):
    monkeypatch.setenv("TFDIST_SECRET", "ours")
    addresses = addresses_of(2)
    host, port = addresses[0].split(":")
    with socket.create_server((host, int(port))) as stranger:
        caller = calls(addresses, 1, run_id="run")
        connection, _ = stranger.accept()
        send(connection, {"kind": "challenge", "nonce": NONCE})
        told = receive(connection, SECONDS)
        # What the caller has proved is no proof of rank 0.
        send(connection, {"kind": "present", "proof": told["proof"]})
        assert is_hung_up(connection)
        connection.close()

    assert told.keys() == {"kind", "nonce", "proof"}
    with pytest.raises(RuntimeError, match=r"belongs to another run, or has another"):
        caller.result(SECONDS)


def test_a_crowd_of_strangers_holds_nobody_up(goes_on, monkeypatch):
    monkeypatch.setattr(handshake, "_UNPROVEN", 8)
    with ExitStack() as crowd, goes_on() as addresses:
        for _ in range(100):
            stranger = crowd.enter_context(knock(addresses[0]))
            stranger.sendall(b"\0\0")
        assert receive(stranger, SECONDS)["kind"] == "challenge"


def test_a_silent_stranger_is_soon_hung_up_on(goes_on, monkeypatch):
    with goes_on() as addresses, monkeypatch.context() as patched:
        patched.setattr(handshake, "_ACKNOWLEDGE_SECONDS", 0.1)
        with knock(addresses[0]) as stranger:
            assert receive(stranger, SECONDS)["kind"] == "challenge"
            assert is_hung_up(stranger)


@pytest.mark.parametrize(
    ("is_local", "secret", "warns"),
    [(True, "", False), (False, "", True), (False, "x", False)],
)
def test_ranks_of_several_hosts_without_a_secret_are_warned(
    calls, monkeypatch, caplog, is_local, secret, warns
):
    monkeypatch.setenv("TFDIST_SECRET", secret)
    monkeypatch.setattr(secret_module, "is_loopback", lambda host: is_local)

    with pytest.raises(TimeoutError):
        calls(addresses_of(2), 0, start_timeout_seconds=0.1).result(SECONDS)

    said = any("as TFDIST_SECRET is not set: any program" in m for m in caplog.messages)
    assert said is warns


def test_the_secret_may_be_in_a_file(tmp_path):
    file = tmp_path / "secret"
    env = {"TFDIST_SECRET": "a", "TFDIST_SECRET_FILE": str(file)}
    with pytest.raises(OSError, match=r"must name a file .*Received: .*/secret \(\["):
        Launcher(env).secret()
    file.write_text(" \n")
    with pytest.raises(ValueError, match=r"must name a file with a secret\. Received"):
        Launcher(env).secret()
    file.write_text("of all\n")
    assert Launcher(env).secret() == "of all"
    assert Launcher({"TFDIST_SECRET": "a"}).secret() == "a"
    assert Launcher({}).secret() == ""


def test_more_ranks_than_files_that_may_be_open_are_refused():
    before = _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most - 2, most))
    try:
        for count in (most - 2, most - 1):
            presence.allow_open_files(count, "A job needs files")
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (count, most)
        error = rf"limit of {most}, where {most + 1} are needed\. Raise"
        with pytest.raises(OSError, match=error):
            presence.allow_open_files(most + 1, "A job needs files")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_caller_that_goes_away_may_come_back(calls):
    addresses = addresses_of(3)
    chief = calls(addresses, 0)
    with knock(addresses[0]) as first:
        hello(first)
    futures = [calls(addresses, rank) for rank in (1, 2)]

    for future in futures:
        future.result(SECONDS)
    assert chief.result(SECONDS)


@pytest.mark.parametrize(
    ("given", "env", "seconds"),
    [
        (None, {}, 300.0),
        (None, {"TFDIST_START_TIMEOUT": "2.5"}, 2.5),
        (7, {"TFDIST_START_TIMEOUT": "2.5"}, 7),
    ],
)
def test_the_start_timeout_is_that_of_the_argument_or_the_launcher(
    given, env, seconds, monkeypatch
):
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    assert start_timeout(given) == seconds


@pytest.mark.parametrize("text", ["0", "soon", "inf", "nan"])
def test_a_start_timeout_that_is_no_time_is_refused(text):
    message = f"^TFDIST_START_TIMEOUT must be a positive number of seconds. .*'{text}'"
    with pytest.raises(ValueError, match=message):
        Launcher({"TFDIST_START_TIMEOUT": text}).start_timeout()
