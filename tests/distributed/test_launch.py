"""`tfdist.launch` with real processes of this machine, of a notebook too."""

import os
import re
import signal
import sys

import pytest
from launcher import SECONDS, assert_end, started

import tfdist

pytestmark = [pytest.mark.new_processes, pytest.mark.slow]

WAITING = """
import os, signal, tfdist

def wait(word):
    print(word, os.getpid(), flush=True)
    signal.pause()
"""
INTERRUPTED = """
try:
    tfdist.launch(wait, "pid", processes=2)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(tfdist.launch(lambda: tfdist.size(), processes=2))
"""


def test_a_closure_trains_and_its_history_comes_back(capsys):
    units = 3

    def train(epochs):
        import keras
        import numpy as np

        strategy = tfdist.strategies.AllReduceStrategy()
        print("before the fit")
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units)])
            model.compile("adam", "mse")
        return model.fit(np.ones((8, 4)), np.ones((8, 3)), epochs=epochs, verbose=2)

    history = tfdist.launch(train, 2, processes=2)

    assert len(history.history["loss"]) == 2
    assert history.model.weights[0].shape == (4, 3)
    printed = capsys.readouterr().out.splitlines()
    assert {"[0] before the fit", "[1] before the fit", "[0] Epoch 2/2"} <= {*printed}


def test_the_error_of_a_rank_is_raised_with_its_traceback(capfd):
    class Weather(Exception):
        pass

    def fail():
        if tfdist.rank() == 1:
            raise Weather("bad")
        signal.pause()

    with pytest.raises(Weather, match="^bad$") as raised:
        tfdist.launch(fail, processes=2)

    line = '    raise Weather("bad")\n'
    assert line in str(raised.value.__cause__)
    assert f"[1] {line}" in capfd.readouterr().err


def test_a_rank_that_is_killed_is_named():
    def die():
        os.kill(os.getpid(), signal.SIGKILL if tfdist.rank() else signal.SIGCONT)

    with pytest.raises(RuntimeError, match="rank 1 was killed by SIGKILL"):
        tfdist.launch(die, processes=2)


def test_autograph_converts_code_of_the_program(tmp_path):
    """Of a script, whose functions go to the processes with their code."""
    script = tmp_path / "script.py"
    script.write_text(
        "import tensorflow as tf, tfdist\n"
        "tf.constant(1) + 1\n"
        "def positive(number):\n"
        "    @tf.function\n"
        "    def absolute(x):\n"
        "        if x > 0:\n"
        "            return x\n"
        "        return -x\n"
        "    return int(absolute(tf.constant(number)))\n"
        "print(tfdist.launch(positive, -3, processes=1))\n"
    )
    with started(script, command=[sys.executable]) as process:
        out, err = process.communicate(timeout=SECONDS)

    assert (out, process.returncode) == ("3\n", 0), err


def test_ctrl_c_ends_all_ranks(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(WAITING + INTERRUPTED)
    with started(script, command=[sys.executable]) as process:
        pids = [int(process.stdout.readline().split()[-1]) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert_end(pids)
        # No signal of the first call is left for a second.
        assert process.communicate(timeout=SECONDS)[0] == "2\n"


@pytest.mark.requires("jupyter")
def test_the_interrupt_of_a_kernel_ends_all_ranks():
    from jupyter_client.manager import start_new_kernel

    printed = ""

    def read(message):
        """Interrupt the kernel once both ranks wait."""
        nonlocal printed
        before = printed.count("pid")
        printed += message["content"].get("text", "")
        if before < 2 <= printed.count("pid"):
            manager.interrupt_kernel()

    manager, client = start_new_kernel()
    try:
        start = "import tensorflow as tf; tf.constant(1) + 1"
        for code in (start, WAITING, INTERRUPTED):
            client.execute_interactive(code, timeout=SECONDS, output_hook=read)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)

    pids = dict(re.findall(r"^\[(\d)\] pid (\d+)$", printed, re.MULTILINE))
    assert pids.keys() == {"0", "1"}
    assert_end(map(int, pids.values()))
    # The kernel and TensorFlow in it are as before, and there is no error.
    assert re.search(r"^interrupted\n(tfdist run: .*\n)?2\n\Z", printed, re.MULTILINE)
