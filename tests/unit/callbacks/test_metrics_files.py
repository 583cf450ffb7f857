"""Metrics as lines of JSON, and in Prometheus's text format, read by strict rules."""

import json
import math
import os
import re

import pytest

from tfdist.callbacks.metrics_files import EpochMetrics, MetricsFiles
from tfdist.cluster.launcher import (
    METRICS_FILE_VARIABLE,
    METRICS_JSON_VARIABLE,
    RESTARTS_VARIABLE,
    Launcher,
)

METRICS = EpochMetrics(
    epoch=3,
    processes=2,
    examples_per_second=1500.5,
    step_seconds=0.125,
    wait_share=0.25,
    loss_scale=32768.0,
    logs={"loss": 0.5, "val_loss": math.nan},
    unix_seconds=1764054000.25,
)
# https://prometheus.io/docs/instrumenting/exposition_formats/
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"({NAME})\{{{LABEL}\}} (\S+)")


def parsed(text):
    """Return kind, labels and value of each metric; fail unless all lines are right."""
    assert text.endswith("\n")
    lines, found = text.splitlines(), {}
    for about, kind, sample in zip(*[iter(lines)] * 3, strict=True):
        name, label, value, number = SAMPLE.fullmatch(sample).groups()
        assert re.fullmatch(rf"# HELP {name} [A-Z][^\\\n]+\.", about)
        (of,) = re.fullmatch(rf"# TYPE {name} (gauge|counter)", kind).groups()
        assert name.endswith("_total") == (of == "counter")
        assert name not in found
        unescaped = re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), value)
        found[name] = of, {label: unescaped}, float(number)
    return found


@pytest.fixture
def files(tmp_path):
    """Return the files of one start of a job."""

    def files(restarts, name="resnet"):
        env = {
            METRICS_JSON_VARIABLE: str(tmp_path / "epochs.json"),
            METRICS_FILE_VARIABLE: str(tmp_path / f"{name}.prom"),
            RESTARTS_VARIABLE: str(restarts),
        }
        return MetricsFiles(Launcher(env))

    return files


def test_nothing_is_written_without_variables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = MetricsFiles(Launcher({METRICS_JSON_VARIABLE: ""}))
    files.begin(METRICS)
    files.write(METRICS)

    assert os.listdir(tmp_path) == []


def test_prometheus_reads_the_last_epoch_alone(files, tmp_path):
    names = 'a\\"n\n', "resnet"
    for name in names:
        files(1, name).begin(EpochMetrics(None, 2))
        early = parsed((tmp_path / f"{name}.prom").read_text())
        files(1, name).write(METRICS)

    assert {*early} == {
        "tfdist_processes",
        "tfdist_restarts_total",
        "tfdist_updated_timestamp_seconds",
    }
    for name in names:
        run = {"run": name}
        assert parsed((tmp_path / f"{name}.prom").read_text()) == {
            "tfdist_epoch": ("gauge", run, 3),
            "tfdist_updated_timestamp_seconds": ("gauge", run, 1764054000.25),
            "tfdist_processes": ("gauge", run, 2),
            "tfdist_examples_per_second": ("gauge", run, 1500.5),
            "tfdist_step_seconds": ("gauge", run, 0.125),
            "tfdist_wait_ratio": ("gauge", run, 0.25),
            "tfdist_loss_scale": ("gauge", run, 32768),
            "tfdist_restarts_total": ("counter", run, 1),
        }
    # The exporter would read what is left over.
    assert {*os.listdir(tmp_path)} == {"epochs.json", *(f"{n}.prom" for n in names)}


def test_lines_of_all_starts_are_whole(files, tmp_path):
    path = tmp_path / "epochs.json"
    files(0).begin(EpochMetrics(None, 2))
    files(0).write(METRICS)
    # A full disk.
    with path.open("a") as file:
        file.write('{"epoch": 4, "pro')
    files(1).begin(EpochMetrics(None, 2))
    files(1).write(METRICS)

    first, cut, second = path.read_text().splitlines()
    assert cut == '{"epoch": 4, "pro'
    assert json.loads(second) == json.loads(first) | {"restarts": 1}
    assert json.loads(first) == {
        "epoch": 3,
        "processes": 2,
        "examples_per_second": 1500.5,
        "step_seconds": 0.125,
        "wait_share": 0.25,
        "loss_scale": 32768.0,
        "logs": {"loss": 0.5, "val_loss": None},
        "unix_seconds": 1764054000.25,
        "restarts": 0,
    }


@pytest.mark.parametrize("variable", [METRICS_JSON_VARIABLE, METRICS_FILE_VARIABLE])
def test_a_file_that_cannot_be_written_fails_before_the_first_epoch(variable, tmp_path):
    files = MetricsFiles(Launcher({variable: str(tmp_path / "none" / "a.prom")}))

    with pytest.raises(FileNotFoundError, match="none"):
        files.begin(METRICS)
