"""Steps of training between two hosts on a slow network, by compression.

The hosts are network namespaces of this machine, joined by a cable of the given rate
(`tc tbf`): needs root, iproute2 and openssh-server.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import keras
from script import run_script

from tfdist.benchmarks.models import build_cnn, make_images
from tfdist.benchmarks.timers import StepTimer
from tfdist_cli.table import format_table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/distributed"))

from two_hosts import ADDRESSES, root, two_hosts  # noqa: E402

_WARM_UP_STEPS = 3
_SECONDS = 600
_TFDIST = "import sys; from tfdist_cli.main import main; sys.exit(main())"


class _Turn:
    """A turn that is always there: the jobs run one after the other."""

    def take(self):
        """Begin."""

    def pass_on(self):
        """End."""


class _Timer(StepTimer, keras.callbacks.Callback):
    """`StepTimer` as a callback of Keras 3."""


def train(compression, batch_size, steps, file):
    """Train on one rank; the chief writes the seconds of each step."""
    import tfdist

    strategy = tfdist.strategies.AllReduceStrategy(compression=compression)
    with strategy.scope():
        model = build_cnn(keras)
    timer = _Timer(_Turn(), steps + _WARM_UP_STEPS)
    model.fit(
        make_images(batch_size * tfdist.size()),
        steps_per_epoch=steps + _WARM_UP_STEPS,
        callbacks=[timer],
        verbose=0,
    )
    if tfdist.is_chief():
        Path(file).write_text(json.dumps(timer.blocks[0][_WARM_UP_STEPS - 1 :]))


def measure(hosts, compression, args):
    """Return the median step in ms of a job on both hosts."""
    file = hosts.folder / "seconds.json"
    words = [compression, str(args.batch_size), str(args.steps), str(file)]
    command = [
        *(sys.executable, "-c", _TFDIST, "run", "-H", ",".join(ADDRESSES)),
        *("--ssh", hosts.ssh, "--threads-per-process", "1"),
        *(sys.executable, __file__, "--train", *words),
    ]
    done = subprocess.run(
        hosts.inside(0, *command), capture_output=True, text=True, timeout=_SECONDS
    )
    if done.returncode:
        raise RuntimeError(f"{compression}: {done.stderr[-2000:]}")
    return 1e3 * statistics.median(json.loads(file.read_text()))


def measure_all(args):
    """Measure each compression at each rate."""
    rates = args.rates.split(",")
    rows, figures = [], {}
    with tempfile.TemporaryDirectory() as folder, two_hosts(Path(folder)) as hosts:
        for compression in args.compressions.split(","):
            found = {}
            for rate in rates:
                _limit(hosts, rate)
                found[rate] = measure(hosts, compression, args)
            figures[compression] = found
            rows.append([compression, *(f"{found[rate]:.0f} ms" for rate in rates)])
    return figures, format_table([f"batch {args.batch_size} each", *rates], rows)


def _limit(hosts, rate):
    """Give the cable a rate in both directions."""
    for number in (0, 1):
        bucket = ("tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
        device = ("dev", f"veth{number + 1}", "root")
        root(*hosts.inside(number, "tc", "qdisc", "replace", *device, *bucket))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        compression, batch_size, steps, file = sys.argv[2:]
        train(compression, int(batch_size), int(steps), file)
    else:
        run_script(
            __doc__,
            [
                ("--rates", "1gbit,100mbit", "rates of the network"),
                ("--compressions", "none,fp16,bf16,powersgd", "forms of gradients"),
                ("--batch-size", 64, "examples in a step of one process"),
                ("--steps", 20, "timed steps"),
            ],
            measure_all,
        )
