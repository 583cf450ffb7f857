"""Scripts without a word of tfdist, which `--strategy` trains on several processes."""

import sys
from pathlib import Path

import pytest
from launcher import COMMAND, printed_by, run

SLOW = pytest.mark.slow

FOLDER = Path(__file__).with_name("unedited")
# In `make test`: a model with a step of its own.
QUICK = {"own_step.py"}
SCRIPTS = [
    pytest.param(path, id=path.stem, marks=() if path.name in QUICK else SLOW)
    for path in sorted(FOLDER.glob("*.py"))
]
RUN = ("run", "--collective", "tensorflow", "--strategy")
MODEL = """
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((16, 2)), np.ones(16), batch_size=8, verbose=0)
print("replicas", model.distribute_strategy.num_replicas_in_sync)
"""


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a script, and returns its path."""

    def write_script(text):
        path = tmp_path / "train.py"
        imports = "import keras\nimport numpy as np\nimport tensorflow as tf\n"
        path.write_text(imports + text)
        return path

    return write_script


@pytest.mark.parametrize("script", SCRIPTS)
def test_several_processes_train_a_script_as_one_does(script, tmp_path):
    assert "tfdist" not in script.read_text()

    words = ("--strategy", "all_reduce", "-np", 2, "--steps", 8, script)
    said = printed_by(COMMAND, "verify", *words, cwd=tmp_path)

    assert said.startswith("PASS: 2 processes train "), said


def test_the_scripts_are_ten():
    assert len(SCRIPTS) == 10


@SLOW
@pytest.mark.parametrize(
    "roles", [("parameter_server", "--workers", "2", "--ps", "1"), ("auto", "-np", "2")]
)
def test_a_script_under_other_strategies(write, roles):
    first, *rest = roles
    said = printed_by(COMMAND, *RUN, first, *rest, write(MODEL))

    assert "replicas" in said


@SLOW
def test_a_module(write):
    script = write(MODEL)
    words = ("all_reduce", "-np", 2, "-m", script.stem)

    assert "[1] replicas 2" in printed_by(COMMAND, *RUN, *words, cwd=script.parent)


@pytest.fixture
def alone():
    """Return a function that runs a script on one process under a strategy."""

    def run_alone(script):
        command = (sys.executable, "-m", "tfdist.default_strategy", "all_reduce")
        return run(script, command=command)

    return run_alone


@pytest.mark.parametrize(
    "first",
    [
        "tf.Variable(1.0)",
        "tf.data.Dataset.range(4).map(lambda x: x + 1)",
        pytest.param("tf.distribute.get_strategy()", marks=SLOW),
        pytest.param(
            "tf.function(lambda x: x + 1).get_concrete_function(tf.TensorSpec([None]))",
            marks=SLOW,
        ),
        pytest.param("type('Own', (keras.Model,), {})()", marks=SLOW),
    ],
)
def test_the_strategy_is_there_before_what_comes_first(write, alone, first):
    script = write(
        f"""
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.set_visible_devices([], "GPU")
keras.utils.set_random_seed(1)
made = {first}
strategy = tf.distribute.get_strategy()
assert type(strategy).__name__ == "AllReduceStrategy", strategy
if isinstance(made, keras.Model):
    assert made.distribute_strategy is strategy
if isinstance(made, tf.Variable):
    assert strategy.extended.variable_created_in_scope(made)
"""
    )
    ended = alone(script)

    assert ended.returncode == 0, ended.stderr


def test_a_thread_may_run_the_first_operation(write, alone):
    script = write(
        """
import threading
thread = threading.Thread(target=lambda: tf.constant(1.0))
thread.start()
thread.join()
assert keras.Sequential([]).distribute_strategy is tf.distribute.get_strategy()
assert tf.distribute.has_strategy()
"""
    )
    ended = alone(script)

    assert ended.returncode == 0, ended.stderr


LOOP = """
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD()
with tf.GradientTape() as tape:
    loss = tf.reduce_mean(model(tf.ones((4, 2))))
gradients = tape.gradient(loss, model.trainable_variables)
optimizer.apply(gradients, model.trainable_variables)
"""
# The model alone is of the strategy.
LOOP_THAT_LEAVES = f"""
import tfdist

with tfdist.strategies.AllReduceStrategy().scope():
    {LOOP.strip()}
"""
LOOP_THAT_LEAVES = LOOP_THAT_LEAVES.replace(
    "optimizer.apply", "optimizer.build(model.trainable_variables)\noptimizer.apply"
)
PARALLEL = "keras.distribution.set_distribution(keras.distribution."


@pytest.mark.parametrize(
    ("strategy", "loop", "message"),
    [
        (["--strategy", "all_reduce"], LOOP, "called under strategy.scope() alone."),
        ([], LOOP_THAT_LEAVES, "called without it, on variables of AllReduceStrategy."),
    ],
)
def test_a_loop_without_the_strategy_is_refused(write, strategy, loop, message):
    words = ("--collective", "tensorflow", *strategy, "-np", "2")
    ended = run(*words, write(loop))

    assert ended.returncode == 1
    assert f"Received: sgd.apply {message}" in ended.stderr


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (
            "tf.distribute.MirroredStrategy()",
            "MirroredStrategy in the script, beside --strategy all_reduce. Drop one of "
            "them: leave out --strategy to keep the script's, or in the script use",
        ),
        pytest.param(
            "import tfdist\ntfdist.strategies.AllReduceStrategy()",
            "AllReduceStrategy in the script, beside --strategy all_reduce. Drop one",
            marks=SLOW,
        ),
        pytest.param(
            f"{PARALLEL}ModelParallel(layout_map=keras.distribution.LayoutMap("
            "keras.distribution.DeviceMesh((1,), ['model'], ['cpu:0']))))",
            "Received: keras.distribution.ModelParallel, which divides it, and which",
            marks=SLOW,
        ),
        pytest.param(
            f"{PARALLEL}DataParallel(devices=['cpu:0', 'cpu:1']))",
            "DataParallel must be on all devices of the strategy. Received: ['cpu:0', "
            "'cpu:1'], and 1 replicas. Leave out its devices.",
            marks=SLOW,
        ),
        pytest.param(
            "keras.distribution.initialize(num_processes=3)",
            "must agree with the job: rank 0 of 1. Received: job_addresses=None, "
            "num_processes=3, process_id=None. Leave its arguments out; the launcher",
            marks=SLOW,
        ),
        pytest.param(
            "",
            "A program under --strategy all_reduce must use TensorFlow. Received: one "
            "that has ended without an operation of TensorFlow, on each process by",
            marks=SLOW,
        ),
    ],
)
def test_mistakes_are_told(write, alone, mistake, message):
    ended = alone(write(mistake))

    assert ended.returncode == 1
    assert message in ended.stderr


@SLOW
def test_the_distribution_of_keras_means_the_strategy(write):
    distributed = "keras.distribution.initialize(num_processes=2)\n"
    distributed += f"{PARALLEL}DataParallel())\n"
    words = ("all_reduce", "-np", 2)

    assert "replicas 2" in printed_by(COMMAND, *RUN, *words, write(distributed + MODEL))
