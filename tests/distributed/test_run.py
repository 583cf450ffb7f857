"""`tfdist run` with real processes, from the outside: what a user types and sees."""

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys

import pytest
from launcher import SECONDS, TFDIST, assert_end, run, started

pytestmark = pytest.mark.new_processes

FOREVER = "while :; do sleep 1000 & wait $!; done"


def read_numbers(process, count):
    """Return the numbers in the next lines of the output, by their word."""
    lines = [process.stdout.readline() for _ in range(count)]
    return {line.split()[-2]: int(line.split()[-1]) for line in lines}


def by_rank(text):
    """Return the untagged lines of each rank."""
    lines = {}
    for line in text.splitlines():
        rank, words = re.fullmatch(r"\[(\d+)\] (.*)", line).groups()
        lines.setdefault(int(rank), []).append(words)
    return lines


# -- who the processes are --------------------------------------------------------


def test_each_process_knows_its_place(tmp_path):
    script = tmp_path / "who.py"
    script.write_text(
        "import json, os, tfdist\n"
        "names = ('TF_CONFIG', 'TFDIST_RUN_ID', 'ADDED', 'INHERITED')\n"
        "facts = [tfdist.rank(), tfdist.size(), tfdist.local_rank(),\n"
        "         tfdist.local_size(), tfdist.is_chief()]\n"
        "print(json.dumps([facts, *[os.environ[name] for name in names]]))\n"
    )

    done = run(
        *("-np", "3", "--env", "ADDED=a b", str(script)),
        env={**os.environ, "INHERITED": "1", "TF_CONFIG": "{}"},
    )

    assert done.returncode == 0
    assert done.stderr.startswith("tfdist run: the 3 processes never met. If none")
    assert len(done.stderr.splitlines()) == 1
    lines = by_rank(done.stdout)
    ranks = [json.loads(lines[rank][0]) for rank in range(3)]
    assert [rank[0] for rank in ranks] == [
        [0, 3, 0, 3, True],
        [1, 3, 1, 3, False],
        [2, 3, 2, 3, False],
    ]
    assert {tuple(rank[3:]) for rank in ranks} == {("a b", "1")}
    assert len({rank[2] for rank in ranks}) == 1
    clusters = [json.loads(rank[1])["cluster"]["worker"] for rank in ranks]
    assert clusters[0] == clusters[1] == clusters[2]
    assert len(set(clusters[0])) == 3


@pytest.mark.requires("taskset")
def test_a_dry_run_can_be_pasted(tmp_path):
    script = tmp_path / "who.py"
    script.write_text(
        "import os, sys, tfdist; print(tfdist.rank(), tfdist.size(), sys.argv[1:],"
        " os.environ['ADDED'])"
    )
    arguments = ["a b", "$HOME", "it's", "--np"]

    lines = run(
        *("-np", "2", "--collective", "tensorflow", "--env", "ADDED=x y", "--dry-run"),
        *(str(script), *arguments),
    ).stdout.splitlines()

    pasted = [run("-c", line, command=("bash",)).stdout for line in lines]
    assert pasted == [f"{rank} 2 {arguments} x y\n" for rank in (0, 1)]


def test_a_module_is_found_in_this_folder(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("import sys; print(sys.argv[1:])")

    done = run("-np", "1", "-m", "package.train", "--x", "-m", cwd=tmp_path)

    assert done.stdout == "[0] ['--x', '-m']\n"


# -- what they print --------------------------------------------------------------


def test_streams_stay_apart_and_python_is_unbuffered(tmp_path):
    script = tmp_path / "talk.py"
    # Whatever is not flushed is lost here.
    script.write_text(
        "import os, sys\nprint('out')\nprint('err', file=sys.stderr)\nos._exit(0)\n"
    )

    done = run("-np", "2", str(script))

    assert sorted(done.stdout.splitlines()) == ["[0] out", "[1] out"]
    assert sorted(done.stderr.splitlines())[:2] == ["[0] err", "[1] err"]


def test_any_bytes_come_through():
    text = r"10%%\r20%%\r\n\n\xff\xfe\nlast"

    tagged = run("-np", "1", "printf", text, text=False)
    raw = run("-np", "1", "--no-tag-output", "printf", text, text=False)

    assert tagged.stdout == (b"[0] 20%\n[0] \n[0] \xff\xfe\n[0] last\n")
    assert raw.stdout == b"10%\r20%\r\n\n\xff\xfe\nlast"


def test_each_rank_has_a_log(tmp_path):
    logs = tmp_path / "a" / "logs"
    script = "echo out $TFDIST_RANK; echo err >&2; printf '50%%\\r'; printf end"

    done = run("-np", "2", "--output-dir", str(logs), "bash", "-c", script)

    assert sorted(os.listdir(logs)) == ["job.jsonl", "rank.0.log", "rank.1.log"]
    for rank in (0, 1):
        log = (logs / f"rank.{rank}.log").read_bytes()
        assert log.replace(b"err\n", b"") == b"out %d\n50%%\rend" % rank
        assert b"err\n" in log
    assert "[1] out 1" in done.stdout


OF_CHIEF = """
import os, pathlib, sys, time

rank, is_printed = os.environ["TFDIST_RANK"], pathlib.Path("is_printed")
print("out", rank)
print("err", rank, file=sys.stderr)
if rank == "0":
    is_printed.touch()
while not is_printed.exists():
    time.sleep(0.02)
assert rank in sys.argv[1], "no data"
"""


def test_the_output_of_the_chief_alone(tmp_path):
    (tmp_path / "train.py").write_text(OF_CHIEF)

    done = run(
        *("-np", "2", "--output", "chief", "--output-dir", "logs", "train.py", "0"),
        cwd=tmp_path,
    )

    assert done.stdout == "[0] out 0\n"
    assert "[0] err 0" in done.stderr
    assert "err 1" not in done.stderr
    lines = done.stderr.splitlines()
    assert "[1] AssertionError: no data" in lines
    assert lines[-1].startswith("tfdist run: rank 1 failed with exit code 1 after ")
    log = (tmp_path / "logs" / "rank.1.log").read_text()
    assert {"out 1", "err 1", "AssertionError: no data"} < {*log.splitlines()}


TRAINING = """
import warnings
import keras, numpy as np, tensorflow as tf, tfdist

with tfdist.strategies.AllReduceStrategy().scope():
    model = keras.Sequential([keras.layers.Dense(1, input_shape=(2,))])
    model.compile("sgd", "mse")
model.summary()
model.summary(print_fn=lambda text, **_: print("a summary of the user"))
warnings.warn("a warning of the user")
tf.get_logger().warning("a log of the user")
callbacks = [
    keras.callbacks.EarlyStopping(
        "loss", patience=0, mode="max", restore_best_weights=True, verbose=1
    ),
    keras.callbacks.ReduceLROnPlateau(
        "loss", patience=1, mode="max", min_delta=9, verbose=1
    ),
    keras.callbacks.ModelCheckpoint("model.h5", verbose=1),
]
x, y = np.zeros((8, 2), "float32"), np.ones((8, 1), "float32")
model.fit(x, y, batch_size=4, epochs=3, verbose=0, callbacks=callbacks)
print("a line of the user")
"""


def test_what_keras_prints_comes_from_the_chief_and_what_the_user_prints_from_all(
    forked, tmp_path
):
    (tmp_path / "train.py").write_text(TRAINING)

    done = run("-np", "2", "train.py", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    out, err = done.stdout, done.stderr
    assert count_by_rank("a (line|summary) of the user", out) == (2, 2)
    assert count_by_rank("(Warning: |tensorflow:)a (warning|log) of the user", err) == (
        2,
        2,
    )
    for text in (
        "Total params: 3",
        "ReduceLROnPlateau reducing",
        "Epoch 2: early stopping",
        "Restoring model weights",
        "Epoch 1: saving model",
    ):
        assert count_by_rank(text, out) == (1, 0), text
    for text in ("Do not pass an `input_shape`", "saving your model as an HDF5 file"):
        chief, other = count_by_rank(text, err)
        assert (chief > 0, other) == (True, 0), text


def count_by_rank(pattern, text):
    """Return in how many lines of ranks 0 and 1 a pattern is."""
    return tuple(
        len(re.findall(rf"^\[{rank}\] .*{pattern}", text, re.MULTILINE))
        for rank in (0, 1)
    )


LONG_TRAINING = """
import pathlib, time
import keras, numpy as np, tfdist

class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print("rank", tfdist.rank(), "has done", batch)
        time.sleep(0.3)
        while batch == 10 and not pathlib.Path("is_seen").exists():
            time.sleep(0.05)

with tfdist.strategies.AllReduceStrategy().scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x, y = np.zeros((48, 2), "float32"), np.ones((48, 1), "float32")
model.fit(x, y, batch_size=4, callbacks=[Slow()])
"""


def test_a_terminal_says_how_far_the_job_is_and_no_line_is_mixed_with_it(
    forked, tmp_path
):
    (tmp_path / "train.py").write_text(LONG_TRAINING)
    master, slave = pty.openpty()
    command = [*TFDIST, "-np", "2", "train.py"]
    env = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(
        command, stdout=slave, stderr=slave, cwd=tmp_path, env=env
    )
    os.close(slave)
    written = b""
    line = r"epoch 1/1, step \d+/12, [\d.,]+ examples/s, \d:\d\d:\d\d left"
    with contextlib.suppress(OSError):  # The end of a terminal.
        while data := os.read(master, 65_536):
            written += data
            if re.search(line, written.decode(errors="replace")):
                (tmp_path / "is_seen").touch()
    os.close(master)

    assert process.wait(SECONDS) == 0, written.decode()
    text = written.decode()
    assert re.search(line, text), text
    end = screen(text)
    assert {f"[1] rank 1 has done {n}" for n in range(12)} < {*end}, end
    # On the chief, Keras's progress bar stands before it.
    done = [row for row in end if re.search(r"^\[0\] .*rank 0 has done \d+$", row)]
    assert len(done) == 12, end
    assert not [row for row in end if "epoch 1/1, step" in row]


def screen(text):
    """Return the rows of a terminal that has no lower end."""
    rows, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[?\d]*[A-Za-z]|.", text, re.DOTALL):
        if part == "\n":
            row += 1
            rows += [""] * (row == len(rows))
        elif part == "\r":
            column = 0
        elif part == "\x1b[A":
            row -= 1
        elif part == "\x1b[K":
            rows[row] = rows[row][:column]
        elif part[0] != "\x1b":
            rows[row] = (
                rows[row][:column].ljust(column) + part + rows[row][column + 1 :]
            )
            column += 1
    return rows


@pytest.mark.slow
def test_an_output_that_nobody_reads_ends_the_run():
    with started("-np", "2", "yes") as process:
        process.stdout.readline()
        process.stdout.close()

        assert process.wait(SECONDS) == 141
        assert "could not be written" in process.stderr.read()


# -- how they end -----------------------------------------------------------------


def test_the_failing_rank_is_named_with_its_last_lines(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import signal, tfdist\n"
        "if tfdist.rank() == 1:\n"
        "    raise RuntimeError('no more data')\n"
        "signal.pause()\n"
    )

    done = run("-np", "3", str(script))

    assert done.returncode == 1
    *_, before, last = done.stderr.splitlines()
    assert before == "    RuntimeError: no more data"
    assert re.fullmatch(
        r"tfdist run: rank 1 failed with exit code 1 after \d+\.\d s; "
        r"ranks 0 and 2 were still running and were ended\.",
        last,
    )
    assert "tfdist run: the last lines of rank 1:" in done.stderr


def test_what_needs_a_terminal_is_to_be_run_without_tfdist_run():
    done = run("-np", "2", sys.executable, "-c", "breakpoint()")

    assert done.returncode == 1
    assert done.stderr.endswith(
        "tfdist run: breakpoint() and input() need a terminal, which no rank has. "
        "Debug with one process: python train.py\n"
    )


def test_a_rank_that_is_killed_is_named_with_the_signal():
    script = f"if [ $TFDIST_RANK = 1 ]; then kill -SEGV $$; fi; {FOREVER}"

    done = run("-np", "2", "bash", "-c", script)

    assert done.returncode == 139
    assert "rank 1 was killed by SIGSEGV" in done.stderr.splitlines()[-1]


def test_the_first_failure_counts_not_the_first_exit(tmp_path):
    """Rank 0 fails, and needs a moment to exit; rank 1, missing it, is quicker.

    But not quicker than the launcher reads why rank 0 fails.
    """
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = tmp_path / "train.py"
    script.write_text(
        "import atexit, os, select, sys, time, tfdist\n"
        f"fifo, log = {str(fifo)!r}, {str(tmp_path / 'rank.0.log')!r}\n"
        "def leave():\n"
        "    with open(fifo) as file: peer = int(file.readline())\n"
        "    try: select.select([os.pidfd_open(peer)], [], [], 300)\n"
        "    except ProcessLookupError: pass  # It is gone already.\n"
        "if tfdist.rank() == 0:\n"
        "    atexit.register(leave)\n"
        "    raise ValueError('the cause')\n"
        "with open(fifo, 'w') as file: file.write(f'{os.getpid()}\\n')\n"
        "while 'the cause' not in open(log).read(): time.sleep(0.02)\n"
        "sys.exit(9)\n"
    )

    done = run("-np", "2", "--output-dir", str(tmp_path), str(script))

    assert done.returncode == 1
    assert "rank 0 failed with exit code 1" in done.stderr.splitlines()[-1]
    assert "    ValueError: the cause" in done.stderr


def test_a_rank_that_ends_well_is_not_missed():
    script = "if [ $TFDIST_RANK = 0 ]; then exit 0; fi; read -t 0.5 <> <(:); echo late"

    done = run("-np", "2", "bash", "-c", script)

    assert (done.returncode, done.stdout, done.stderr) == (0, "[1] late\n", "")


STUBBORN = (
    "trap '' INT TERM HUP QUIT; echo rank $$; sleep 1000 & echo child $!; "
    f"setsid sleep 1000 & echo session $!; echo guardian $PPID; {FOREVER}"
)


def test_time_is_up():
    script = "if [ $TFDIST_RANK != 1 ]; then " + FOREVER + "; fi"

    # On a starved machine rank 1 needs longer.
    for seconds in ("1", "30"):
        done = run("-np", "3", "--timeout", seconds, "bash", "-c", script)
        if "ranks 0, 1 and 2" not in done.stderr:
            break

    assert done.returncode == 124
    assert done.stderr == (
        f"tfdist run: the run did not end within {seconds} s; "
        "ranks 0 and 2 were still running and were ended.\n"
    )


def test_nothing_outlives_a_launcher_that_is_killed():
    with started("-np", "1", "bash", "-c", STUBBORN) as process:
        pids = read_numbers(process, 4)

        process.kill()

        assert_end(pids.values())


def test_only_the_launcher_and_the_rank_show_the_command():
    """`pkill -f train.py` must leave the guardian, which clears up, alone."""
    script = f": train.py; echo guardian $PPID; {FOREVER}"

    with started("-np", "1", "bash", "-c", script) as process:
        guardian = read_numbers(process, 1)["guardian"]
        with open(f"/proc/{guardian}/cmdline") as file:
            command = file.read()

    assert "guardian.py" in command
    assert "train.py" not in command


# -- signals ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
)
def test_a_signal_is_passed_on_and_ends_the_run(number, code):
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo bye; exit 0' {name}; echo rank $$; {FOREVER}"

    with started("-np", "2", "bash", "-c", script) as process:
        read_numbers(process, 2)

        process.send_signal(number)
        out, err = process.communicate(timeout=SECONDS)

    assert process.returncode == code
    assert sorted(out.splitlines()) == ["[0] bye", "[1] bye"]
    assert err.startswith(f"tfdist run: {number.name} ended the run; ranks 0 and 1")


def test_the_second_ctrl_c_kills_at_once():
    heard = STUBBORN.replace("trap '' INT", "trap 'echo heard' INT; trap ''")

    with started("-np", "1", "bash", "-c", heard) as process:
        pids = read_numbers(process, 4)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "[0] heard\n"
        process.send_signal(signal.SIGINT)

        assert process.wait(SECONDS) == 130
        assert_end(pids.values())


def test_a_second_sigterm_does_not_cut_the_first_short(tmp_path):
    """A scheduler may repeat it while the ranks save their state."""
    mark = tmp_path / "mark"
    saves = f"echo heard; until [ -e {mark} ]; do sleep 0.1; done; echo saved; exit"
    script = f"trap '{saves}' TERM; echo rank $$; {FOREVER}"

    with started("-np", "1", "bash", "-c", script) as process:
        read_numbers(process, 1)
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "[0] heard\n"
        process.send_signal(signal.SIGTERM)
        mark.touch()
        out, _ = process.communicate(timeout=SECONDS)

    assert (process.returncode, out) == (143, "[0] saved\n")


@pytest.mark.slow
def test_ctrl_c_works_while_the_console_stands_still():
    with started("-np", "1", "bash", "-c", f"echo rank $$; yes {'x' * 99}") as process:
        pids = read_numbers(process, 1)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)

        assert process.wait(SECONDS) == 130
        assert_end(pids.values())


def test_other_signals_are_passed_on_without_ending_anything():
    script = f"trap 'echo usr1; exit 0' USR1; echo rank $$; {FOREVER}"

    with started("-np", "2", "bash", "-c", script) as process:
        read_numbers(process, 2)

        process.send_signal(signal.SIGUSR1)
        out, err = process.communicate(timeout=SECONDS)

    assert (process.returncode, err) == (0, "")
    assert sorted(out.splitlines()) == ["[0] usr1", "[1] usr1"]


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        pytest.param((), "reached", marks=pytest.mark.slow),
        (("--isolate-network",), "refused"),
    ],
)
def test_isolated_processes_reach_nothing_else(options, answer):
    """A port of this machine stands for another host."""
    with socket.create_server(("127.0.0.1", 0)) as outside:
        place = f"/dev/tcp/127.0.0.1/{outside.getsockname()[1]}"
        script = f"echo > {place} && echo reached || echo refused"
        done = run("-np", "2", *options, "bash", "-c", f"({script}) 2> /dev/null")

    assert by_rank(done.stdout) == {0: [answer], 1: [answer]}, done.stderr


@pytest.mark.slow
def test_ctrl_z_stops_the_ranks_and_fg_wakes_them():
    script = f"trap 'echo awake; exit 0' CONT; echo rank $$; {FOREVER}"

    with started("-np", "1", "bash", "-c", script) as process:
        pid = read_numbers(process, 1)["rank"]
        process.send_signal(signal.SIGTSTP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=SECONDS)

    assert (process.returncode, out) == (0, "[0] awake\n")
    assert_end([pid])
