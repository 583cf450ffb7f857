"""The counters of the kernel."""

import os
import socket
import time

from tfdist.benchmarks import servers
from tfdist.benchmarks.servers import count_sent_bytes, processor_seconds, sent_bytes

LISTING = """\
ESTAB 0 0 127.0.0.1:80 127.0.0.1:5001 cubic bytes_sent:100 bytes_acked:99
ESTAB 0 0 127.0.0.1:5001 127.0.0.1:80 cubic bytes_sent:20 bytes_acked:20
ESTAB 0 0 127.0.0.1:81 127.0.0.1:5002 cubic bytes_sent:3
ESTAB 0 0 [::1]:82 [::1]:80 cubic bytes_acked:1
ESTAB 0 0 127.0.0.1:9000 127.0.0.1:5003 cubic bytes_sent:4000
"""


def test_both_ends_of_a_connection_count():
    assert count_sent_bytes(LISTING, {80}) == 120
    assert count_sent_bytes(LISTING, {80, 81}) == 123


def test_bytes_sent_to_a_port_are_counted(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            connection, _ = server.accept()
            before = sent_bytes({port})
            client.sendall(bytes(1000))
            connection.recv(1000, socket.MSG_WAITALL)
            after = sent_bytes({port})
            connection.close()

    assert before is None or after - before == 1000
    monkeypatch.setattr(servers.shutil, "which", lambda name: None)
    assert sent_bytes({port}) is None


def test_processor_time_is_that_of_the_process():
    before = time.process_time()

    assert before <= processor_seconds([os.getpid()]) <= time.process_time()
