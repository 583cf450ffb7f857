"""Steps of training between two hosts on a slow network, by engine and compression.

The hosts are network namespaces of this machine, joined by a cable of the given rate
(`tc tbf`): needs root, iproute2 and openssh-server. "torch" is DistributedDataParallel
over Gloo.
"""

import contextlib
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import keras
from data_parallel import train_with_torch
from models import build_cnn, make_images
from script import run_script
from timers import StepTimer

from tfdist.cluster import detect
from tfdist.cluster.address import split_address
from tfdist_cli.table import format_table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/distributed"))

from two_hosts import ADDRESSES, root, two_hosts  # noqa: E402

_WARM_UP_STEPS = 3
_SECONDS = 600
_TFDIST = "import sys; from tfdist_cli.main import main; sys.exit(main())"
# The engines, their packages, and the forms of gradients that they lack.
_ENGINES = {
    "tensorflow": ("tensorflow", ()),
    "mpi": ("mpi4py", ()),
    "horovod": ("horovod", ("bf16", "powersgd")),
    # Its hook for bf16 refuses Gloo.
    "torch": ("torch", ("bf16", "powersgd")),
}
_THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
# Open MPI refuses to be started by root without them.
_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
_MPI_OPTIONS = (
    # As `tfdist run` does: a rank that waits lets others have the core.
    *("--mca", "mpi_yield_when_idle", "1"),
    *("--map-by", "slot", "--bind-to", "none"),
    *("--mca", "btl_tcp_if_include", f"{ADDRESSES[0]}/24"),
)


class _Turn:
    """A turn that is always there: the jobs run one after the other."""

    def take(self):
        """Begin."""

    def pass_on(self):
        """End."""


class _Timer(StepTimer, keras.callbacks.Callback):
    """`StepTimer` as a callback of Keras 3."""


def train(engine, compression, batch_size, steps, file):
    """Train on one rank; the chief writes the seconds of each step."""
    steps += _WARM_UP_STEPS
    if engine == "torch":
        rank = detect().rank
        os.environ["GLOO_SOCKET_IFNAME"] = _device(rank)
        timer = train_with_torch(_Turn(), batch_size, steps, steps, compression)
    else:
        rank, timer = _train_with_tfdist(engine, compression, batch_size, steps)
    if rank == 0:
        Path(file).write_text(json.dumps(timer.blocks[0][_WARM_UP_STEPS - 1 :]))


def _train_with_tfdist(engine, compression, batch_size, steps):
    """Train with an engine of tfdist; return the rank and the timer."""
    import tfdist

    if engine == "horovod":
        meet_by_horovod()
    strategy = tfdist.strategies.AllReduceStrategy(engine, compression=compression)
    with strategy.scope():
        model = build_cnn(keras)
    timer = _Timer(_Turn(), steps)
    model.fit(
        make_images(batch_size * tfdist.size()),
        steps_per_epoch=steps,
        callbacks=[timer],
        verbose=0,
    )
    return tfdist.rank(), timer


def meet_by_horovod():
    """Let Horovod's processes meet at rank 0, as its launcher would."""
    from horovod.runner import gloo_run
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http import http_server

    cluster = detect()
    host, port = place = split_address(cluster.addresses[0])
    per_host = cluster.size // len(ADDRESSES)
    hosts = parse_hosts(",".join(f"{address}:{per_host}" for address in ADDRESSES))
    plan = get_host_assignments(hosts, cluster.size)
    if cluster.rank == 0:
        handler = http_server.RendezvousHandler
        server = http_server.RendezvousHTTPServer(place, handler, 0)
        server.init(plan)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    while cluster.rank:
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(place).close()
            break
        time.sleep(0.1)
    # In a namespace of this process's own: Horovod looks up its address by it, too.
    number = cluster.rank // per_host
    socket.sethostname(ADDRESSES[number])
    os.environ |= {
        **gloo_run.create_slot_env_vars(plan[cluster.rank]),
        **gloo_run.create_run_env_vars(host, [_device(number)], str(port)),
    }


def _device(rank):
    """Return the network device of a host."""
    return f"veth{rank + 1}"


def measure(hosts, engine, compression, args):
    """Return the median step in ms of a job on both hosts."""
    file = hosts.folder / "seconds.json"
    words = [engine, compression, str(args.batch_size), str(args.steps), str(file)]
    run_on_both(hosts, engine, [__file__, "--train", *words])
    return 1e3 * statistics.median(json.loads(file.read_text()))


def run_on_both(hosts, engine, words, per_host=1):
    """Run a Python program in processes of both hosts, joined by an engine."""
    program = ["unshare", "--uts", sys.executable, *words]
    slots = ",".join(f"{address}:{per_host}" for address in ADDRESSES)
    if engine == "mpi":
        agent = hosts.folder / "agent"
        shell = shlex.join(hosts.inside(1, *_named("host2", "sh", "-c")))
        agent.write_text(f'#!/bin/sh\nshift\nexec {shell} "$*"\n')
        agent.chmod(0o700)
        options = ["-np", str(2 * per_host), "--host", slots, *_MPI_OPTIONS]
        options += ["--prtemca", "plm_ssh_agent", str(agent)]
        options += [word for name in _THREADS for word in ("-x", f"{name}=1")]
        mpirun = f"{sys.prefix}/bin/mpirun"
        command = _named("host1", "env", *_ROOT, mpirun, *options, *program)
    else:
        command = [
            *(sys.executable, "-c", _TFDIST, "run", "-H", slots),
            *("--ssh", hosts.ssh, "--threads-per-process", "1", *program),
        ]
    done = subprocess.run(
        hosts.inside(0, *command), capture_output=True, text=True, timeout=_SECONDS
    )
    if done.returncode:
        raise RuntimeError(f"{engine}: {done.stderr[-2000:]}")


def _named(name, *words):
    """Return a command that runs on a host of a name; Open MPI tells hosts by it."""
    return ("unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', name, *words)


def measure_all(args):
    """Measure each engine and compression at each rate."""
    rates = args.rates.split(",")
    rows, figures = [], {}
    with tempfile.TemporaryDirectory() as folder, two_hosts(Path(folder)) as hosts:
        for compression in args.compressions.split(","):
            for engine in _engines(args, compression):
                found = {}
                for rate in rates:
                    limit(hosts, rate)
                    found[rate] = measure(hosts, engine, compression, args)
                figures[f"{engine}, {compression}"] = found
                cells = [f"{found[rate]:.0f} ms" for rate in rates]
                rows.append([compression, engine, *cells])
    header = ["compression", f"batch {args.batch_size} each", *rates]
    return figures, format_table(header, rows)


def _engines(args, compression):
    """Return the engines that are installed and can compress like this."""
    return [
        engine
        for engine in args.engines.split(",")
        if find_spec(_ENGINES[engine][0]) and compression not in _ENGINES[engine][1]
    ]


def limit(hosts, rate):
    """Give the cable a rate in both directions."""
    for number in (0, 1):
        bucket = ("tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
        device = ("dev", _device(number), "root")
        root(*hosts.inside(number, "tc", "qdisc", "replace", *device, *bucket))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        engine, compression, batch_size, steps, file = sys.argv[2:]
        train(engine, compression, int(batch_size), int(steps), file)
    else:
        run_script(
            __doc__,
            [
                ("--rates", "1gbit,100mbit", "rates of the network"),
                ("--engines", ",".join(_ENGINES), "what moves the gradients"),
                ("--compressions", "none,fp16,bf16,powersgd", "forms of gradients"),
                ("--batch-size", 64, "examples in a step of one process"),
                ("--steps", 20, "timed steps"),
            ],
            measure_all,
        )
