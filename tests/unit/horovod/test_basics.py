"""Starting Horovod, and the error without it."""

import re
import subprocess
import sys

import pytest

needs_horovod = pytest.mark.requires("horovodrun")


@needs_horovod
def test_a_launcher_that_does_not_join_horovods_processes_is_refused(
    hvd, monkeypatch, be_one_of_two
):
    be_one_of_two(1)
    for name in ("RUN_ID", "RANK", "LOCAL_RANK"):
        monkeypatch.setenv(f"TFDIST_{name}", "1")
    for name in ("SIZE", "LOCAL_SIZE"):
        monkeypatch.setenv(f"TFDIST_{name}", "2")
    text = (
        "Horovod does not join the processes that tfdist run has started. Received: "
        "rank 1 of 2, and a Horovod of one process, which is built with"
    )

    with pytest.raises(RuntimeError, match=re.escape(text)):
        hvd.init()


@needs_horovod
@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("BroadcastGlobalVariablesHook", "callbacks.BroadcastGlobalVariablesCallback"),
        ("broadcast_", "broadcast_variables(variables, root_rank, inplace=True)"),
        ("broadcast_object_fn", "broadcast_object(value, root_rank)"),
    ],
)
def test_names_of_tensorflow_1_say_what_to_write_instead(hvd, name, instead):
    text = f"tfdist.horovod has no {name}. Received: hvd.{name}. Write hvd.{instead}"
    with pytest.raises(AttributeError, match=f"^{re.escape(text)}"):
        getattr(hvd, name)

    with pytest.raises(AttributeError, match=r"^module .* has no attribute 'ranks'$"):
        _ = hvd.ranks


BLOCKED = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "horovod":
            raise {error}

sys.meta_path.insert(0, Blocker())
import tfdist
print(tfdist.rank())
try:
    tfdist.horovod
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            "ModuleNotFoundError(\"No module named 'horovod'\")",
            "an environment without it (No module named 'horovod'). "
            "Run `tfdist horovod install`.",
        ),
        (
            "OSError('undefined symbol: _ZN3tsl')",
            "one that cannot be loaded (OSError: undefined symbol: _ZN3tsl). "
            "Run `tfdist horovod install` again",
        ),
    ],
    ids=["missing", "built for another TensorFlow"],
)
def test_what_to_do_without_a_fitting_horovod_is_said_at_the_first_use(
    forked, error, expected
):
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(error=error)],
        capture_output=True,
        text=True,
        check=True,
    )
    rank, message = done.stdout.splitlines()[-2:]

    assert rank == "0"
    assert expected in message


@needs_horovod
def test_a_lone_process_is_rank_0_of_1(hvd):
    assert hvd.is_initialized()
    assert (hvd.rank(), hvd.local_rank(), hvd.cross_rank()) == (0, 0, 0)
    assert (hvd.size(), hvd.local_size(), hvd.cross_size()) == (1, 1, 1)
    assert hvd.is_homogeneous()


@needs_horovod
def test_what_it_starts_is_alone_too(hvd):
    """With MPI, Horovod makes its process the only rank of a server of its own."""
    code = "import tfdist; print(tfdist.rank(), tfdist.size())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("0 1\n", "")


# As in a script; the method of the model is looked up before the optimizer is wrapped.
ONE_LINE = """
import keras
import tfdist.horovod as hvd

hvd.init()
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(
    hvd.DistributedOptimizer(keras.optimizers.SGD()),
    "mse",
    experimental_run_tf_function=False,
)
print(model.compiled)
"""


@needs_horovod
def test_a_model_is_compiled_in_one_line_with_its_first_optimizer(forked):
    done = subprocess.run(
        [sys.executable, "-c", ONE_LINE], capture_output=True, text=True, timeout=300
    )

    assert done.stdout == "True\n", done.stderr
