"""Pools of processes that a rank starts, as people write them."""

import pytest
from launcher import run

pytestmark = pytest.mark.new_processes

SECONDS = 1200
PROGRAM = """
import multiprocessing, sys
import tfdist

make = tfdist.strategies.AllReduceStrategy
strategy = make() if sys.argv[2] == "top" else None

def square(x):
    return x * x

if __name__ == "__main__":
    strategy = strategy or make()
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        print(strategy.num_replicas_in_sync, pool.map(square, range(4)))
"""


def run_pool(tmp_path, collective, *words):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    job = ("-np", "2", "--collective", collective, str(program))
    return run(*job, *words, timeout=SECONDS)


@pytest.mark.slow
def test_a_strategy_that_each_spawned_process_makes_again(tmp_path):
    done = run_pool(tmp_path, "mpi", "spawn", "top")

    assert done.returncode == 143
    assert "makes the strategy again, as multiprocessing imports" in done.stderr
    assert "under `if __name__ == '__main__':`." in done.stderr
    assert " was killed by SIGTERM after " in done.stderr.splitlines()[-1]
    for trace in ("Traceback", "MPI_Init", "cannot listen"):
        assert trace not in done.stderr


@pytest.mark.parametrize(
    "words",
    [("fork", "top"), pytest.param(("spawn", "main"), marks=pytest.mark.slow)],
)
def test_pools_whose_processes_make_no_strategy(tmp_path, words, request):
    if words[0] == "fork":
        request.getfixturevalue("forked")
    done = run_pool(tmp_path, "tensorflow", *words)

    assert done.returncode == 0, done.stderr
    lines = [f"[{rank}] 2 [0, 1, 4, 9]" for rank in range(2)]
    assert sorted(done.stdout.splitlines()) == lines
