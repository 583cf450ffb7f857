"""The Python in the pages runs: a page as it is read, or each block alone.

All pages share a process, because to import TensorFlow costs more than all of them. The
programs that are for several processes are started on several.
"""

import json
import os
import re
import sys

import pytest
from launcher import COMMAND, printed_by
from page_blocks import PAGES, ROOT, all_blocks, blocks_of

pytestmark = pytest.mark.slow

# What a page takes for granted: that of the reader.
PRELUDES = {
    "docs/callbacks.md": "from pages import dataset, model; import keras, tfdist",
    "docs/horovod.md": "import tensorflow as tf",
    "docs/parameter_servers.md": "import tfdist",
    "docs/scaling.md": "from pages import dataset, model; import tfdist",
}

# Blocks that are compiled and not run here, and why.
COMPILED = {
    "README.md:python:0": "trains for long, below",
    "docs/embeddings.md:python:1": "needs servers, and has them below",
    "docs/horovod.md:python:2": "an elastic job: tests/distributed/"
    "test_horovod_elastic.py runs the same",
    "docs/parameter_servers.md:python:0": "needs servers, and has them below",
    **dict.fromkeys(
        [f"docs/with_others.md:python:{number}" for number in range(3)],
        "needs Ray or Spark: tests/distributed/test_launch_engines.py runs the same",
    ),
    "docs/with_others.md:python:3": "needs W&B: tests/distributed/test_trackers.py "
    "runs it",
    "docs/with_others.md:python:4": "downloads weights: tests/distributed/"
    "test_equality_loaders.py runs small ones",
    "docs/with_others.md:python:5": "needs Keras Tuner: tests/distributed/"
    "test_keras_tuner.py runs it",
    "docs/parameter_servers.md:python:3": "reads the reader's files: tests/distributed/"
    "test_parameter_server_input.py runs the same",
}

# Pages of which each block runs when it is pasted alone.
ALONE = {"docs/callbacks.md", "docs/quick_start.md"}

# What can be done only before TensorFlow starts: pages with it have a process each.
AT_THE_START = ("tfdist.devices.", "virtual_ranks=")

# Left out where Horovod is not installed.
NEED_HOROVOD = {
    "docs/horovod.md:python:0",
    "docs/horovod.md:python:1",
}

READERS_OWN = """
import keras
import tensorflow as tf

dataset = tf.data.Dataset.from_tensor_slices((tf.ones((8, 4)), tf.zeros(8))).batch(4)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "softmax")])
model.compile("sgd", "sparse_categorical_crossentropy")
"""

# The strategy of parameter servers, alone: whether it takes what it is given.
RUN_ALL = """
import doctest, inspect, io, json, os, sys, traceback
from contextlib import redirect_stdout

pages = json.load(open(sys.argv[1]))
# Above all that starts TensorFlow, as pages say.
import tfdist
import keras

taken = tfdist.strategies.ParameterServerStrategy
tfdist.strategies.ParameterServerStrategy = inspect.signature(taken).bind
errors = {}
for page, is_alone, prelude, blocks in pages:
    os.mkdir(folder := page.replace("/", "_"))
    os.chdir(folder)
    for number, (name, text) in enumerate(blocks):
        if is_alone or number == 0:
            sys.modules.pop("pages", None)
            exec(prelude, names := {"__name__": page})
        try:
            with redirect_stdout(io.StringIO()) as printed:
                if text.startswith(">>>"):
                    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
                    runner.run(parser.get_doctest(text, names, name, name, 0))
                    assert runner.failures == 0
                else:
                    exec(compile(text, name, "exec"), names)
        except BaseException:
            errors[name] = traceback.format_exc() + printed.getvalue()
    os.chdir("..")
    keras.config.set_dtype_policy("float32")
json.dump(errors, open(sys.argv[2], "w"))
"""


def is_here(block):
    """Whether what a block needs is installed."""
    return block.name not in NEED_HOROVOD or COMMAND.with_name("horovodrun").exists()


def run_here(page):
    """Return the blocks of a page that are run in one process, with their names."""
    return [
        (block.name, block.text)
        for block in blocks_of(page, "python")
        if block.name not in COMPILED and is_here(block)
    ]


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """Run the blocks of all pages; return the error of each that fails."""
    shared, alone, found = [], [], {}
    for page in PAGES:
        blocks = run_here(page)
        is_first = any(word in text for _, text in blocks for word in AT_THE_START)
        if blocks:
            row = (page, page in ALONE, PRELUDES.get(page, ""), blocks)
            (alone if is_first else shared).append(row)
    for rows in [shared, *([row] for row in alone)]:
        found |= errors_of(rows, tmp_path_factory.mktemp("pages"))
    return found


def errors_of(rows, folder):
    """Run the blocks of some pages in a process; return their errors by name."""
    (folder / "pages.py").write_text(READERS_OWN)
    (folder / "blocks.json").write_text(json.dumps(rows))
    printed_by(
        *(sys.executable, "-c", RUN_ALL, "blocks.json", "errors.json"),
        cwd=folder,
        timeout=None,
        env=os.environ
        | {
            "PATH": f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        },
    )
    return json.loads((folder / "errors.json").read_text())


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks_of(page, "python")], ids=str
)
def test_the_python_of_a_page_runs(page, errors):
    own = {name: text for name, text in errors.items() if name.startswith(f"{page}:")}

    assert own == {}, "\n".join(own.values())


@pytest.mark.parametrize("name", COMPILED)
def test_what_is_not_run_here_is_python_all_the_same(name):
    [block] = [block for block in all_blocks("python") if block.name == name]

    compile(block.text, name, "exec")


def test_the_tables_name_blocks_that_there_are():
    names = {block.name for block in all_blocks("python")}

    assert {*COMPILED, *NEED_HOROVOD} <= names
    assert set(PRELUDES) <= set(PAGES)


def test_the_quick_start_runs_on_two_processes(tmp_path):
    """Each block as a program of its own, the last, a test, below."""
    printed = []
    for block in blocks_of("docs/quick_start.md", "python")[:-1]:
        (tmp_path / "train.py").write_text(block.text)
        printed += printed_by(COMMAND, "run", "-np", 2, "train.py", cwd=tmp_path).split(
            "\n"
        )

    assert {"[0] 0 2 0 2", "[1] 1 2 1 2"} <= set(printed)


def test_the_test_of_the_quick_start_passes(tmp_path):
    *_, block = blocks_of("docs/quick_start.md", "python")
    (tmp_path / "test_train.py").write_text(block.text)
    plain = ("-p", "no:cacheprovider", "-p", "no:xdist", "-q")

    printed = printed_by(sys.executable, "-m", "pytest", *plain, ".", cwd=tmp_path)

    assert "1 passed" in printed


def test_the_recipes_train_on_two_processes(tmp_path):
    blocks = blocks_of("docs/cookbook.md", "python")
    agree = "print(sum(float(abs(w).sum()) for w in noisy.get_weights()))"
    (tmp_path / "train.py").write_text("\n".join([b.text for b in blocks] + [agree]))

    printed = printed_by(COMMAND, "run", "-np", 2, "train.py", cwd=tmp_path)

    # The sums of both ranks, to the last digit.
    assert len({*re.findall(r"^\[[01]\] ([\d.]+)$", printed, re.MULTILINE)}) == 1
    assert len(re.findall(r"^\[[01]\] [\d.]+$", printed, re.MULTILINE)) == 2
    assert (tmp_path / "best.keras").exists()
    assert "loss: 0.0000e+00" not in printed


def test_the_readme_trains_on_two_processes_as_on_one(tmp_path):
    (block,) = blocks_of("README.md", "python")
    (tmp_path / "train.py").write_text(block.text)
    two = printed_by(COMMAND, "run", "-np", 2, "train.py", cwd=tmp_path)
    one = printed_by(sys.executable, "train.py", cwd=tmp_path)

    readme, _ = (ROOT / "README.md").read_text().split("## What is broken today")
    shown, *others = (
        [float(value) for value in re.findall(r"(?:cy|loss): (\d\S+)", text)[-2:]]
        for text in (readme, two, one)
    )

    assert others == [pytest.approx(others[0], abs=2e-4)] * 2
    # On other processors rounding is different.
    assert shown == pytest.approx(others[0], abs=0.02)


def test_the_divided_table_trains_on_two_processes(tmp_path):
    import keras

    text = blocks_of("docs/embeddings.md", "python")[0].text
    (tmp_path / "train.py").write_text(text)

    printed_by(COMMAND, "run", "-np", 2, "train.py", cwd=tmp_path)

    model = keras.models.load_model(tmp_path / "model.keras", compile=False)
    assert [v.shape for v in model.variables if len(v.shape) == 2][0] == (1000000, 32)


@pytest.mark.parametrize(
    ("page", "number", "expected"),
    [("parameter_servers", 0, "ps 0: "), ("embeddings", 1, "2560")],
)
def test_a_program_with_parameter_servers(page, number, expected, tmp_path):
    text = blocks_of(f"docs/{page}.md", "python")[number].text
    (tmp_path / "train.py").write_text(text)

    printed = printed_by(
        *(COMMAND, "run", "--workers", 2, "--ps", 1, "train.py"), cwd=tmp_path
    )

    assert expected in printed
    assert (tmp_path / "model.keras").exists()
