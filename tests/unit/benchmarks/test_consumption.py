"""What processes have taken, as the kernel counts it."""

import os
import socket
import time

from tfdist.benchmarks import consumption
from tfdist.benchmarks.consumption import (
    count_sent_bytes,
    processor_seconds,
    sent_bytes,
)

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


def test_what_is_sent_to_a_port_is_counted():
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


def test_without_ss_nothing_is_counted(monkeypatch):
    monkeypatch.setattr(consumption.shutil, "which", lambda name: None)

    assert sent_bytes({80}) is None


def test_the_time_of_processors_is_that_of_the_process():
    before = time.process_time()

    assert before <= processor_seconds([os.getpid()]) <= time.process_time()
