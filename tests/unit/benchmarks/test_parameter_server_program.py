"""What the chief of a measured job does, and what its servers do."""

import json
import os

import pytest

from tfdist.benchmarks import parameter_server_program as program_module
from tfdist.benchmarks.parameter_server_program import pid_file, run_task, warm_file
from tfdist.benchmarks.program import report_file
from tfdist.benchmarks.turns import TurnKeeper
from tfdist.cluster import Cluster, Task

ADDRESSES = {"chief": "h:1", "workers": ("h:2",), "ps": ("h:3",)}


def of_task(kind):
    return Cluster(task=Task(kind, 0), **ADDRESSES)


def orders(folder, port, process):
    given = {
        "port": port,
        "group": 0,
        "folder": str(folder),
        "is_stopped": False,
        "process": process,
        "settings": {"steps": 3},
    }
    return [json.dumps(given)]


def test_the_chief_measures_all_processes_of_its_job(monkeypatch, tmp_path):
    monkeypatch.setattr(program_module, "detect", lambda: of_task("chief"))
    monkeypatch.setattr(program_module, "processor_seconds", list)
    monkeypatch.setattr(program_module, "sent_bytes", sorted)
    for process in (6, 7):
        pid_file(tmp_path, process).write_text(str(process))

    def measure(make_meter, *, steps):
        turn, read, on_warm = make_meter(lambda *given: given)
        turn.take()
        on_warm()
        turn.pass_on()
        return [steps, *read()]

    with TurnKeeper([1]) as keeper:
        run_task(measure, orders(tmp_path, keeper.port, 5))

    report = json.loads(report_file(tmp_path, 5).read_text())
    assert report == [3, [os.getpid(), 6, 7], [1, 2, 3]]
    assert warm_file(tmp_path, 5).exists()


def test_the_others_serve(monkeypatch, tmp_path):
    from tfdist.strategies.parameter_server import servers

    def serve(cluster):
        raise SystemExit(str(cluster.task))

    monkeypatch.setattr(servers, "serve", serve)
    monkeypatch.setattr(program_module, "detect", lambda: of_task("worker"))

    with pytest.raises(SystemExit, match="worker 0"):
        run_task(pytest.fail, orders(tmp_path, 0, 6))

    assert pid_file(tmp_path, 6).read_text() == str(os.getpid())
