"""Jobs with parameter servers: their settings, figures and counters."""

import os
import socket
import time

import pytest

LISTING = """\
ESTAB 0 0 127.0.0.1:80 127.0.0.1:5001 cubic bytes_sent:100 bytes_acked:99
ESTAB 0 0 127.0.0.1:5001 127.0.0.1:80 cubic bytes_sent:20 bytes_acked:20
ESTAB 0 0 127.0.0.1:81 127.0.0.1:5002 cubic bytes_sent:3
ESTAB 0 0 [::1]:82 [::1]:80 cubic bytes_acked:1
ESTAB 0 0 127.0.0.1:9000 127.0.0.1:5003 cubic bytes_sent:4000
"""


@pytest.fixture
def servers(script):
    return script("server_jobs")


def test_both_ends_of_a_connection_count(servers):
    assert servers.count_sent_bytes(LISTING, {80}) == 120
    assert servers.count_sent_bytes(LISTING, {80, 81}) == 123


def test_bytes_sent_to_a_port_are_counted(monkeypatch, servers):
    sent_bytes = servers.sent_bytes
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
    monkeypatch.setenv("PATH", "")
    assert sent_bytes({port}) is None


def test_processor_time_is_that_of_the_process(servers):
    before = time.process_time()

    assert before <= servers.processor_seconds([os.getpid()]) <= time.process_time()


def test_speed_and_cost_of_a_job(servers):
    job_figures = servers.job_figures
    epoch = {"seconds": 2.0, "processor_seconds": 1.0, "sent_bytes": 100}

    figures = job_figures(10, [epoch, epoch | {"seconds": 4.0}])

    assert figures["steps_per_second"]["median"] == 3.75
    assert figures["processor_seconds_per_step"]["median"] == 0.1
    assert figures["bytes_per_step"]["median"] == 10.0
    uncounted = job_figures(10, [epoch, epoch | {"sent_bytes": None}])
    assert uncounted["bytes_per_step"] is None


def test_the_histogram_of_the_staleness(servers):
    staleness_figures = servers.staleness_figures
    figures = staleness_figures({"0": 50, "1": 30, "2": 19, "12": 1})

    assert figures["histogram"] == {0: 50, 1: 30, 2: 19, 12: 1}
    assert (figures["median"], figures["percentile_99"]) == (0, 2)
    assert figures["largest"] == 12
    assert staleness_figures({})["largest"] == staleness_figures({})["median"] == 0


def test_the_job_with_parameter_servers(servers):
    setup = servers.JobSetup(2, 3, 16, 1, "workers")
    jobs = [
        setup.fit_job({"consistency": "async"}, 8),
        setup.fit_job({"consistency": "sync"}, 4),
    ]

    assert {(job.workers, job.ps, job.reporters) for job in jobs} == {(2, 3, 1)}
    alone, together = (job.settings for job in jobs)
    assert (alone["source"], alone["steps_per_execution"]) == ("workers", 8)
    assert (alone["batch_size"], alone["steps"]) == (64, 16)
    # In synchronous training each worker has a batch.
    assert (together["batch_size"], together["steps"]) == (128, 8)
    assert together["strategy"] == {"consistency": "sync"}


@pytest.mark.parametrize(
    ("numbers", "count", "error"),
    [
        ((0, 1, 4, 1), 1, "workers must be at least 1"),
        ((2, 1, 10, 1), 8, "steps must be a multiple of 8, .* steps=10. Use 8."),
        ((2, 1, 10, 1), 0, "steps_per_execution must be at least 1"),
    ],
)
def test_arguments_of_a_job_that_are_rejected(numbers, count, error, servers):
    with pytest.raises(ValueError, match=error):
        servers.JobSetup(*numbers).fit_job({}, count)
