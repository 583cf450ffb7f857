"""`tfdist blackbox`: what it prints."""

import json
import os

import pytest

from tfdist.cluster.launcher import Launcher
from tfdist.recorder.ring import RING_BYTES, Flight, create_file


@pytest.fixture
def folder(tmp_path):
    """A folder with the records of two ranks, of which the first has one entry more."""
    for rank, count in ((0, 3), (1, 2)):
        descriptor = create_file(
            rank, 2, Launcher({"TFDIST_FLIGHT_DIR": str(tmp_path)})
        )
        memory = memoryview(bytearray(RING_BYTES))
        flight = Flight(memory, descriptor)
        for _ in range(count):
            with flight.entry("the exchange of logs", 1500):
                pass
        os.pwrite(descriptor, memory, 0)
        os.close(descriptor)
    return tmp_path


def test_a_sentence_and_a_table(folder, printed):
    text = " ".join(printed("blackbox", str(folder)).split())

    assert text.startswith(
        "rank 1 has not begun the exchange of logs, which rank 0 left"
    )
    assert "all ranks made the same 2 collectives. Rank 1 was last in" in text
    assert "of 2 collectives, " in text
    assert "Times are by the clock of rank 0" in text
    assert "| rank | collective | bytes | began | took ms |" in text
    assert text.count("| the exchange of logs | 1,500 |") == 5


def test_json(folder, printed):
    figures = json.loads(printed("blackbox", str(folder), "--json"))

    assert figures["sentence"].startswith("rank 1 has not begun")
    assert [len(entries) for entries in figures["records"].values()] == [3, 2]


def test_a_folder_that_is_not_there(refusal):
    assert "DIR must be a folder. Received: missing." in refusal("blackbox", "missing")
