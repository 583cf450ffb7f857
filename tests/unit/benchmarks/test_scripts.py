"""The scripts of the folder benchmarks/, as far as they work without processes."""

import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

FOLDER = Path(__file__).parents[3] / "benchmarks"
IMPORTED = {"models", "script", "server_jobs", "timers"}
SCRIPTS = sorted({file.stem for file in FOLDER.glob("*.py")} - IMPORTED)


@pytest.mark.slow
def test_every_script_has_a_help():
    # They run at the same time: each one imports tfdist.
    started = {
        name: subprocess.Popen(
            [sys.executable, FOLDER / f"{name}.py", "--help"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in SCRIPTS
    }
    said = {name: process.communicate()[0] for name, process in started.items()}

    assert [name for name in said if "docs/benchmarks.md" not in said[name]] == []


def test_an_error_of_a_script(script, monkeypatch, capsys):
    memory = script("memory")
    monkeypatch.setattr(sys, "argv", ["memory.py", "-np", "1"])
    with pytest.raises(SystemExit, match="2"):
        script("script").run_script("", [("-np", 2, "processes")], memory.measure_all)

    assert "np must be at least 2. Received: np=1." in capsys.readouterr().err


def test_lines_of_code_leave_out_blank_lines_comments_and_docstrings(script):
    lines_of_code = script("size_of_the_tree").lines_of_code

    source = '"""One.\n\nTwo.\n"""\n\n# Why.\nx = 1  # This one counts.\n'
    assert lines_of_code(source) == 1
    assert lines_of_code('def f(\n    a,\n):\n    """Add."""\n    return "#"\n') == 4


def test_memory_that_grows_is_told_from_memory_that_does_not(script):
    # 50 bytes in any case, and 3 for each byte of gradients.
    figures = script("memory").memory_figures([100, 400], [(1000, 1350), (1900, 3150)])

    assert figures["growth_times_gradients"] == pytest.approx(3.0)
    assert figures["constant_bytes"] == pytest.approx(50.0)
    assert figures["models"][1]["added_times_gradients"] == 3.125


def test_no_message_of_a_rank_ends_the_hub(script):
    figures = script("hostile_peers").attack_hub(frames=1000)

    assert figures["frames_handled"] >= 1000
    assert figures["hubs"] > 20  # For each strange message the rank is cut off.


def test_a_fault_is_judged_by_the_words_of_its_cause_and_rank(script):
    judge = script("fault_drill").judge
    held_up = (
        "[0] TimeoutError: rank 0 has waited 10 s in train_step. Seen now: rank 1 runs "
        "`hang()` at line 45 of fault_drill.py; rank 0 waits in train_step.\n"
        "tfdist run: rank 1 held up the others, and was ended.\n"
    )
    right, wrong = (dict.fromkeys(("is_cause", "is_rank"), it) for it in (True, False))

    assert judge("hang in a callback", 1, 1, held_up) == right
    assert judge("hang in a callback", 0, 1, held_up) == wrong
    assert judge("hang in input", 1, 1, held_up) == {**wrong, "is_rank": True}
    assert judge("hang in a callback", 1, 0, held_up) == {**wrong, "is_rank": True}


def test_steps_with_parts_are_compared_with_those_of_the_same_round(script):
    # By rank and turn; the slower of two ranks counts, and the second turn is noisy.
    figures = script("virtual_ranks").part_figures(
        {
            "none": [[[1.0], [4.0]], [[2.0], [1.0]]],
            "one": [[[2.0], [4.0]], [[1.0], [1.0]]],
            "all": [[[3.0], [5.0]], [[1.0], [6.0]]],
        }
    )

    assert figures["step_seconds"] == {"none": 3.0, "one": 3.0, "all": 4.5}
    assert figures["against_none"] == {"median": 1.5, "low": 1.5, "high": 1.5}
    assert figures["one_against_none"]["median"] == 1.0
    assert figures["against_one"]["median"] == 1.5


def test_micro_steps_are_added_up_to_whole_updates(script):
    transformer = script("transformer_memory")

    # The first of six micro-steps is not in the block, so neither is its update.
    seconds = transformer.by_update([1.0, 2.0, 0.5, 0.25, 0.25], 3)
    assert seconds == [1.0]
    assert transformer.by_update([1.0, 2.0], 1) == [1.0, 2.0]


def test_two_libraries_are_compared_by_their_own_efficiencies(script):
    # The second round is twice as slow for all, and so is the other library.
    ours = {"plain": 1.0, "alone": 1.0, "apart": 1.0, "weak": 1.25, "strong": 0.625}
    theirs = {"alone": 2.0, "apart": 2.0, "weak": 4.0, "strong": 2.0}

    figures = script("data_parallel").parallel_figures(
        64,
        2,
        {name: [[[each], [2 * each]]] for name, each in ours.items()},
        {name: [[[each], [2 * each]]] for name, each in theirs.items()},
    )

    assert figures["tfdist"]["weak_efficiency"]["median"] == pytest.approx(0.8)
    assert figures["other"]["weak_efficiency"]["median"] == pytest.approx(0.5)
    assert figures["other"]["waiting_share"]["median"] == pytest.approx(0.5)
    assert figures["weak_against_other"]["low"] == pytest.approx(1.6)
    assert figures["strong_against_other"]["high"] == pytest.approx(1.6)


def test_the_cost_of_a_backup_is_that_on_the_slowest_rank(script):
    def report(*turns, hold=(), disk=(), sizes=()):
        saves = {"hold_seconds": hold, "disk_seconds": disk, "bytes": sizes}
        return {"turns": list(turns), "saves": saves}

    figures = script("backup").backup_figures(
        {
            # The machine is twice as slow in the second round.
            "none": [report([0.5, 0.5], [1.0]), report([0.5], [0.75])],
            "tfdist": [
                report([0.5], [1.0], hold=[0.1, 0.2], disk=[0.5, 0.7], sizes=[100] * 2),
                report([0.625], [1.25], hold=[0.2, 0.1]),
            ],
            "keras": [report([0.5], [1.0], hold=[0.1]), report([0.5], [1.0])],
        }
    )

    assert figures["epoch_seconds"] == {"none": 0.75, "tfdist": 0.9375, "keras": 0.75}
    assert figures["cost"]["tfdist"]["median"] == pytest.approx(0.25)
    saves = figures["saves"]["tfdist"]
    assert (saves["count"], saves["longest_hold_seconds"]) == (2, 0.2)
    assert saves["hold_seconds"]["median"] == 0.2
    assert saves["disk_seconds"]["median"] == pytest.approx(0.6)
    # Keras writes on the chief alone, while it waits.
    saves = figures["saves"]["keras"]
    assert (saves["count"], saves["disk_seconds"], saves["bytes"]) == (1, None, None)


def test_input_pipelines_are_compared_within_each_round(script):
    seconds = {"naive": 4.0, "sequential": 6.0, "tuned": 2.2, "tfdist": 2.0}
    seconds["cached"] = 0.5
    feeding = {name: [each, 2 * each] for name, each in seconds.items()}
    training = {
        name: [each + 1, 2 * (each + 1)]
        for name, each in {"none": 0.0, **seconds, "cached": 0.0}.items()
    }

    figures = script("input").input_figures(12, 5, feeding, training)

    assert figures["examples_per_second"]["naive"] == pytest.approx(12 / 6)
    assert figures["speed_against"]["tuned"]["median"] == pytest.approx(1.1)
    # One pass of 2 s, four of 0.5 s.
    assert figures["run_speed_against"]["naive"]["median"] == pytest.approx(5.0)
    assert figures["training_examples_per_second"]["none"] == pytest.approx(12 / 1.5)
    assert figures["input"]["naive"]["is_bound"]
    assert not figures["input"]["cached"]["is_bound"]
    assert "none" not in figures["input"]


def test_each_slowed_process_has_its_share_of_a_period(script):
    shares = {7: 0.5, 8: 0.25, 9: 0.5}
    changes = script("slow_worker").changes_of(shares, 12.0)

    times = {(pid, number): seconds for seconds, pid, number in changes}
    for pid, share in shares.items():
        on, off = times[pid, signal.SIGCONT], times[pid, signal.SIGSTOP]
        assert (off - on) % 12.0 == pytest.approx(share * 12.0)
    assert changes == sorted(changes)


def test_slowed_processes_continue_in_the_end(script, is_soon):
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            with script("slow_worker").slowed(lambda: {process.pid: 0.5}):
                assert is_soon("T", process.pid)
            assert is_soon("S", process.pid)
        finally:
            process.kill()


def test_parameter_servers_are_compared_within_each_round(script):
    def epoch(seconds, processor_seconds):
        costs = {"seconds": seconds, "processor_seconds": processor_seconds}
        return {**costs, "sent_bytes": None}

    figures = script("parameter_server").speed_figures(
        10,
        {
            "tfdist": {
                "epochs": [epoch(1.0, 2.0), epoch(2.0, 4.0), epoch(4.0, 1.0)],
                "staleness": {"0": 30},
            },
            "loop": {"epochs": [epoch(1.5, 1.0), epoch(3.0, 2.0), epoch(4.0, 1.0)]},
        },
    )

    assert figures["jobs"]["tfdist"]["steps_per_second"]["median"] == 5.0
    assert figures["speed_against"].keys() == {"loop"}
    assert figures["speed_against"]["loop"]["median"] == 1.5
    assert figures["thrift_against"]["loop"]["median"] == 0.5


def test_adam_of_the_loop_is_the_same_as_in_keras(script):
    first = np.float32([1.0, -2.0, 3.0])
    gradients = [np.float32([0.5, 0.25, -1.0]), np.float32([0.1, -0.2, 0.3])]
    theirs = keras.Variable(first)
    optimizer = keras.optimizers.Adam(0.001)
    ours = tf.Variable(first)
    apply, count = script("parameter_server").make_adam([ours])

    for gradient in gradients:
        optimizer.apply([tf.constant(gradient)], [theirs])
        apply([tf.constant(gradient)])

    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert count.numpy() == 2


def even(median):
    return dict.fromkeys(("median", "low", "high"), median)


def test_training_ratios_are_taken_within_each_round_on_the_slowest_rank(script):
    # The machine is twice as slow in the second round; all are slow alike.
    figures = script("training").training_figures(
        64,
        2,
        {
            "plain": [[[0.03, 0.03], [0.06, 0.06]]],
            "alone": [[[0.03, 0.03, 9.9], [0.06, 0.06]]],
            "apart": [[[0.032, 0.032], [0.064, 0.064]]] * 2,
            "weak": [[[0.04, 0.04], [0.08, 0.08]], [[0.03, 0.03], [0.07, 0.07]]],
            "strong": [[[0.02, 0.02], [0.04, 0.04]]] * 2,
        },
    )

    assert (figures["batch_size"], figures["processes"]) == (64, 2)
    assert figures["step_seconds"]["weak"] == pytest.approx(0.06)
    assert figures["speed_against_plain"] == pytest.approx(even(1.0))
    assert figures["weak_efficiency"] == pytest.approx(even(0.75))
    assert figures["strong_efficiency"] == pytest.approx(even(0.75))
    assert figures["waiting_share"] == pytest.approx(even(0.2))


def args(**options):
    defaults = {"np": 2, "batch_sizes": "64", "steps": 5, "repeats": 1}
    defaults |= {"collective": "tensorflow", "compression": "none"}
    return Namespace(**defaults | options)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"steps": 1}, "steps must be at least 2"),
        (
            {"collective": "horovod", "compression": "bf16"},
            "Horovod has no compression but 'fp16'. Received: --compression bf16",
        ),
    ],
)
def test_arguments_of_training_that_are_rejected(options, error, script):
    with pytest.raises(ValueError, match=error):
        script("training").measure_all(args(**options))


@pytest.mark.parametrize(
    "collective", [pytest.param(None, marks=pytest.mark.slow), "tensorflow"]
)
def test_training_leaves_out_the_block_that_compiles(collective, turn, script):
    blocks = script("training").measure(
        turn,
        collective=collective,
        batch_size=4,
        steps=2,
        repeats=3,
        compression="none",
    )

    assert [len(block) for block in blocks] == [1, 1, 1]
    assert min(min(block) for block in blocks) > 0
    assert turn.events == ["take", "pass on"] * 4
