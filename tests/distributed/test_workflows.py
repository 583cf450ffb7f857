"""Every command of docs/workflows.md, and what must be seen of it.

Those that another test runs already are listed with it, and run there.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from horovod_jobs import MPIRUN

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "workflows.md"
ROW = re.compile(r"^\| (?!---|system )(.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
ROWS = ROW.findall(PAGE.read_text())
COMMANDS = [*dict.fromkeys(re.findall(r"`([^`]+)`", " ".join(r[2] for r in ROWS)))]

# What the commands stand for here, in this environment.
WORDS = {
    "tfdist": [str(Path(sys.executable).with_name("tfdist"))],
    "horovodrun": [str(Path(sys.executable).with_name("horovodrun"))],
    "mpirun": [*MPIRUN],
    "python": [sys.executable],
}

# Command -> the test that runs it, with a place for what it prints or less work to do.
ELSEWHERE = {
    "tfdist run -np 2 examples/digits_allreduce.py": "test_digits.py",
    "python examples/digits_allreduce.py": "test_digits.py",
    "python examples/horovod_migration.py": "test_horovod_migration.py",
    "tfdist run -np 2 examples/large_batch.py --epochs=6 --seeds=1 --times=16": (
        "test_large_batch.py"
    ),
    "tfdist run --workers 2 --ps 1 examples/digits_parameter_server.py --epochs=18 "
    "--consistency=async": "test_parameter_server_example.py",
    "tfdist run --workers 2 --ps 1 examples/digits_parameter_server.py --epochs=18 "
    "--consistency=sync": "test_parameter_server_example.py",
    "tfdist run --workers 2 --ps 2 examples/digits_parameter_server.py --epochs=18 "
    "--consistency=bounded --max_staleness=1": "test_parameter_server_example.py",
    "tfdist run --workers 2 --ps 2 examples/embedding_parameter_server.py": (
        "test_parameter_server_example.py"
    ),
    "sbatch examples/slurm/train.sbatch": "test_slurm.py",
    "python benchmarks/training.py --batch-sizes 4 --steps 2 --repeats 1": (
        "test_bench.py"
    ),
    "python benchmarks/input.py --examples 16 --image-size 64 --batch-size 4 "
    "--repeats 1 --cores 1": "test_bench.py",
    "tfdist run -np 2 examples/tfrecord_pipeline.py": "test_tfrecord_pipeline.py",
    "tfdist env --devices": "test_env.py",
}

# Command -> patterns that its output has, each with the least and the most that the
# number in it may be. With four epochs and these seeds the accuracy was 0.87 to 0.91.
LEARNED = (r"test accuracy: ([\d.]+)", 0.75, 1)
SAME = (r"largest relative difference from one device: ([\d.e+-]+)", 0, 1e-5)
HOROVOD = (r"test accuracy, the mean of 2 processes: ([\d.]+)", 0.75, 1)
ON_BOTH = [
    # Forward and backward, of one layer at least.
    (rf"convolutions and matrix products on CPU:{i}: (\d+)$", 2, 30)
    for i in (0, 1)
]
RATE = r"examples_per_second: [\d.]+"
RUN = {
    "python examples/digits_mirrored.py --epochs=4": [
        LEARNED,
        # Of equal copies.
        (r"a copy on CPU:0: ([\d.]+)\na copy on CPU:1: \1$", 0.1, 100),
        (r"test accuracy: ([\d.]+)\n(?:.*\n)*test accuracy of .* one device: \1$",),
        (r"epoch 4: learning rate 0\.0003$",),
    ],
    "python examples/digits_central_storage.py --epochs=4": [
        *(LEARNED, (r"computed on CPU:0, CPU:1$",)),
        (r"(\d+) variables on CPU:0$", 28, 28),
    ],
    "tfdist run -np 2 examples/digits_multi_worker.py --epochs=4": [
        *(LEARNED, (r", on 2 devices$",)),
        # Of both ranks.
        (r"weights: (sha256 [0-9a-f]{64})\n(?:.*\n)*weights: \1$",),
    ],
    "python examples/digits_towers.py --epochs=4": [LEARNED, SAME, *ON_BOTH],
    "python examples/digits_split_layers.py --epochs=4": [
        *(LEARNED, SAME, *ON_BOTH),
        (r"parameters on CPU:0: (320)$", 320, 320),
        (r"parameters on CPU:1: 52,(\d+)$", 682, 682),
    ],
    "python examples/manual_placement.py --log_placement": [
        (r"the sum of 2 products: \[\[44\.0, 56\.0\], \[98\.0, 128\.0\]\]",),
        (r"computed on CPU:0, CPU:1; added on CPU:0$",),
        (r"a copy is on CPU:1$",),
        (r"^MatMul: \(MatMul\): .*CPU:1$",),
        (r"gradient_tape/.*MatMul: \(MatMul\): .*CPU:1$",),
        (r"a model on CPU:0 learned ([\d.]+)$", 1.99, 2.01),
        (r"a model on CPU:1 learned ([\d.]+)$", 2.99, 3.01),
    ],
    "tfdist run -np 2 examples/digits_mixed_precision.py --epochs=4": [
        LEARNED,
        (r"layers compute in float16$",),
        (r"weights are in float32$",),
        (r"loss_scale: (\d+)$", 1, 2**24),
        (r"skipped_steps: (\d+)$", 0, 20),
    ],
    "horovodrun -np 2 python examples/digits_horovod.py --epochs=4": [HOROVOD],
    "mpirun -np 2 python examples/digits_horovod.py --epochs=4": [HOROVOD],
    "tfdist run -np 2 --collective horovod examples/digits_allreduce.py --epochs=2": [
        (r"all 2 ranks hold identical weights: sha256 [0-9a-f]{64}",),
    ],
    "tfdist run -np 1 --threads-per-process 1 examples/digits_throughput.py "
    "--json=1.json": [(RATE,)],
    "tfdist run -np 2 --threads-per-process 1 examples/digits_throughput.py "
    "--json=2.json": [(RATE,)],
    # After the two before it, which write the files.
    "tfdist report 1.json 2.json": [
        (r"^\| 2 +\| +128 \| +[\d,.]+ \| +([\d.]+) \| +[\d.]+ \|$", 0.1, 4),
        (r"^Weak scaling: the batch of each process is always 64",),
        (r"^\| Gustafson: the work grows ",),
    ],
    "tfdist config build --workers node1:2222,node2:2222 --index 0": [
        (r'"worker": \["node1:2222", "node2:2222"\]',)
    ],
    "tfdist config build --chief host0:2222 --workers host1:2222,host2:2222 "
    "--ps host3:2222 --task ps --index 0": [
        (r'"task": \{"type": "ps", "index": 0\}',),
    ],
    "tfdist run --dry-run -H server1:4,server2:4 examples/digits_allreduce.py": [
        (r"^ssh .*server1 .*TFDIST_SIZE=8 .*examples/digits_allreduce\.py",),
        (r"^ssh .*server2 .*TFDIST_LOCAL_RANK=(3) ", 3, 3),
    ],
    "tfdist env": [(r"^\| engines +\| value",)],
}

# What the courses name; each is in the first cell of a row.
SYSTEMS = """
    multi_gpu_model DataParallel MirroredStrategy MultiWorkerMirroredStrategy
    CentralStorageStrategy TPUStrategy parallel_interleave TFRecord list_files
    tf.device average_gradients apply_gradients list_physical_devices
    list_logical_devices get_visible_devices set_visible_devices allow_growth
    set_memory_growth visible_device_list CUDA_VISIBLE_DEVICES TF_FORCE_GPU_ALLOW_GROWTH
    set_log_device_placement tf.add_n OneDeviceStrategy ParameterServerStrategy
    TF_CONFIG ClusterSpec tf.train.Server replica_device_setter --job_name NCCL
    GPUDirect MXNet mpirun horovodrun torch.distributed.launch sbatch srun
    horovod.keras horovod.tensorflow.keras horovod.torch hvd.init DistributedOptimizer
    BroadcastGlobalVariablesCallback MetricAverageCallback --check-build
    broadcast_parameters broadcast_optimizer_state metric_average DistributedSampler
    set_epoch hvd.size() num_replicas_in_sync ModelCheckpoint TensorBoard
    LearningRateScheduler PrintLR Throughput LossScaleOptimizer FP16_Optimizer
    DistributedDataParallel init_process_group Lightning tf.data tfds.load MNIST
    Amdahl Gustafson OSDI Hogwild SSGD ICLR Apex AMP
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the commands run; it holds what the root of a checkout would."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


def with_marks(command):
    """Return a command as a parameter that says what it asks of the machine."""
    needs = [word for word in ("horovod", "mpirun") if word in command]
    needs = [word.replace("horovod", "horovodrun") for word in needs]
    return pytest.param(command, marks=[pytest.mark.requires(*needs)] if needs else [])


@pytest.mark.parametrize("command", [*map(with_marks, RUN)])
def test_a_command_does_what_it_should(command, folder):
    words = [
        other for word in shlex.split(command) for other in WORDS.get(word, [word])
    ]
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "TFDS_DATA_DIR": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    # The check of the first step finds no difference, and can run each of them.
    assert "The first step" not in done.stdout + done.stderr
    # Without what launchers put before the lines of a process.
    printed = re.sub(r"^\[[\d,]+\](?:<stdout>:)? ?", "", done.stdout, flags=re.M)
    for pattern, *limits in RUN[command]:
        found = re.search(pattern, printed, re.MULTILINE)
        assert found, f"{pattern} is not in:\n{printed[-3000:]}"
        if limits:
            assert limits[0] <= float(found[1]) <= limits[1], found[0]


def test_every_command_of_the_page_is_run():
    assert {*COMMANDS} == {*RUN, *ELSEWHERE}


def test_every_row_has_a_command():
    assert len(ROWS) > 40
    assert [row for row in ROWS if not re.fullmatch(r"`[^`]+`", row[2])] == []


@pytest.mark.parametrize("command", ELSEWHERE)
def test_the_other_test_runs_it(command):
    test = Path(__file__).with_name(ELSEWHERE[command]).read_text()
    # The file of the program, or else the words of the command.
    file = re.search(r"(?:examples|benchmarks)/([\w/]+\.\w+)", command)
    words = [file[1].rpartition("/")[2]] if file else command.split()[1:]

    assert [word for word in words if f'"{word}"' not in test] == []


def test_each_system_has_a_row():
    taught = " ".join(row[0] for row in ROWS)

    assert [system for system in SYSTEMS.split() if system not in taught] == []
