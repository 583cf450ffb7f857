"""What is compared with what; no process is started."""

import pytest

from tfdist.benchmarks import JobSetup, run_embedding, run_parameter_server
from tfdist.benchmarks.run_servers import TOUCHED_BYTES, run_slow_worker

MODULE = "tfdist.benchmarks.run_servers"
EPOCH = {"seconds": 1.0, "processor_seconds": 2.0, "sent_bytes": 4000}


@pytest.fixture
def started(monkeypatch):
    """Return the jobs that are started; all report the same."""
    jobs = []

    def start_jobs(of_call):
        jobs.extend(of_call)
        return [{"epochs": [EPOCH], "staleness": {"0": 4}} for _ in of_call]

    monkeypatch.setattr(f"{MODULE}.start_jobs", start_jobs)
    monkeypatch.setattr(f"{MODULE}.find_spec", lambda name: name == "tf_keras")
    return jobs


def test_four_jobs_where_the_chief_reads(started):
    setup = JobSetup(3, 2, steps=16, repeats=1)

    figures = run_parameter_server(setup, 8)

    assert [job.name for job in started] == [
        *("tfdist", "tf_keras", "loop", "reading_loop")
    ]
    assert {(job.workers, job.ps) for job in started} == {(3, 2)}
    assert started[1].env == {"TF_USE_LEGACY_KERAS": "1"}
    assert [job.settings.get("source") for job in started] == [
        *("chief", None, "chief", "workers")
    ]
    assert {job.settings["steps_per_execution"] for job in started} == {8}
    assert figures["speed_against"]["loop"]["median"] == 1.0
    assert (figures["workers"], figures["consistency"]) == (3, "async")


def test_three_jobs_where_workers_read(started):
    run_parameter_server(JobSetup(2, 1, steps=4, repeats=1, source="workers"), 1)

    assert [job.name for job in started] == ["tfdist", "tf_keras", "loop"]
    assert started[0].settings["source"] == "workers"


def test_tf_keras_may_be_missing(started, monkeypatch):
    monkeypatch.setattr(f"{MODULE}.find_spec", lambda name: None)

    figures = run_parameter_server(JobSetup(2, 1, steps=4, repeats=1), 1)

    assert "tf_keras" not in figures["jobs"]


def test_in_step_each_worker_has_a_batch_of_a_step(started):
    setup = JobSetup(2, 1, steps=16, repeats=1)

    run_parameter_server(setup, 4, consistency="sync")

    ours, theirs = started[0].settings, started[1].settings
    assert (ours["batch_size"], ours["steps"]) == (128, 8)
    assert (theirs["batch_size"], theirs["steps"]) == (64, 16)
    assert ours["strategy"] == {"consistency": "sync", "max_staleness": None}


def test_a_slow_worker_has_half_of_the_others_time(started):
    figures = run_slow_worker(JobSetup(2, 1, steps=4, repeats=1))

    assert {job.name: job.shares for job in started} == {
        "worker": (0.5,),
        "slow_worker": (0.25,),
        "both": (0.5, 0.25),
        "even": (0.5, 0.5, 0.5),
        "one_slow": (0.5, 0.5, 0.25),
    }
    assert [job.workers for job in started] == [1, 1, 2, 3, 3]
    assert [job.settings["batch_size"] for job in started] == [512] * 3 + [1024] * 2
    assert started[-1].settings["strategy"]["backup_workers"] == 1
    assert figures["async"]["kept_speed"]["median"] == 0.5
    assert figures["backup"]["kept_speed"]["median"] == 1.0


def test_the_bytes_of_a_large_table(started):
    figures = run_embedding(JobSetup(2, 1, steps=4, repeats=1))

    assert [(row["optimizer"], row["is_sharded"]) for row in figures] == [
        ("sgd", False),
        ("adagrad", False),
        ("sgd", True),
        ("adagrad", True),
    ]
    assert figures[0]["times_touched"] == 1000 / TOUCHED_BYTES
    assert {job.settings["model"] for job in started} == {"embedding"}


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: JobSetup(0, 1, 4, 1), "workers must be at least 1"),
        (lambda: JobSetup(2, 0, 4, 1), "ps must be at least 1"),
        (lambda: JobSetup(2, 1, 4, 0), "repeats must be at least 1"),
        (
            lambda: run_parameter_server(JobSetup(2, 1, 10, 1), 8),
            "steps must be a multiple of 8, .* Received: steps=10. Use 8.",
        ),
        (
            lambda: run_parameter_server(JobSetup(2, 1, 10, 1), 0),
            "steps_per_execution must be at least 1",
        ),
    ],
)
def test_what_is_refused(started, call, error):
    with pytest.raises(ValueError, match=error):
        call()

    assert started == []
