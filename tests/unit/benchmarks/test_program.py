"""What a program that measures reads and leaves."""

import json

from tfdist.benchmarks.program import report_file, run_program
from tfdist.benchmarks.turns import TurnKeeper


def test_the_settings_arrive_and_the_result_is_left(tmp_path):
    def measure(turn, *, batch_size, names):
        turn.take()
        turn.pass_on()
        return {"seconds": [batch_size / 4], "names": names}

    with TurnKeeper([1]) as keeper:
        orders = {
            "port": keeper.port,
            "group": 0,
            "process": 3,
            "folder": str(tmp_path),
            "is_stopped": False,
            "settings": {"batch_size": 2, "names": ["a"]},
        }
        run_program(measure, [json.dumps(orders)])

    assert json.loads(report_file(tmp_path, 3).read_text()) == {
        "seconds": [0.5],
        "names": ["a"],
    }


def test_each_process_has_a_file(tmp_path):
    assert report_file(tmp_path, 0) != report_file(tmp_path, 1)
