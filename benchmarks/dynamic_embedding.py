"""The memory of servers with a `DynamicEmbedding`, and its speed beside an `Embedding`.

Both tables are on the same servers, and take turns.
"""

import statistics
from time import perf_counter

import psutil
from script import is_program, run_script
from server_jobs import JobSetup, run_task

from tfdist.benchmarks.processes import check_at_least, start
from tfdist.cluster import detect
from tfdist.cluster.address import split_address
from tfdist_cli.table import format_table

_WIDTH = 64
_LOOKUPS = 64
# The values, the momentum and the velocity.
_ROW_BYTES = 3 * 4 * _WIDTH


def measure(make_meter, *, ids, repeats, steps, batch_size, **_):
    """Train both tables on the same ids; return bytes and times."""
    import keras
    import numpy as np
    import tensorflow as tf

    from tfdist.layers import DynamicEmbedding
    from tfdist.strategies import ParameterServerStrategy

    make_meter(lambda turn, *_: turn).take()
    partitioners = tf.distribute.experimental.partitioners
    shards = partitioners.FixedShardsPartitioner(len(detect().ps))
    strategy = ParameterServerStrategy(variable_partitioner=shards)
    servers = [process_at(address) for address in detect().ps]
    numbers = np.random.default_rng(0).permutation(ids)
    # Any 64 bits, as hashes of ids are.
    hashes = numbers * 0x9E3779B97F4A7 - 2**62
    table = DynamicEmbedding(_WIDTH)
    dynamic = build(strategy, table, "int64")
    fit = {"batch_size": batch_size, "verbose": 0, "shuffle": False}
    # Traces all functions.
    dynamic.fit(rows_of(hashes[:_LOOKUPS]), np.ones((1, 1)), **fit)
    before = [used(process) for process in servers]
    dynamic.fit(rows_of(hashes), np.ones((ids // _LOOKUPS, 1)), **fit)
    after = [used(process) for process in servers]
    fixed = build(strategy, keras.layers.Embedding(ids, _WIDTH), "int64")
    seconds = {}
    for repeat in range(repeats + 1):
        for name, model, own in (
            ("fixed", fixed, numbers),
            ("dynamic", dynamic, hashes),
        ):
            x = rows_of(own[: steps * batch_size * _LOOKUPS])
            calls = {
                "lookups": lambda model=model, x=x: model.predict(
                    x, batch_size=batch_size, verbose=0
                ),
                "training": lambda model=model, x=x: model.fit(
                    x, np.ones((len(x), 1)), **fit
                ),
            }
            for what, call in calls.items():
                begun = perf_counter()
                call()
                if repeat:
                    times = seconds.setdefault(f"{what}, {name}", [])
                    times.append((perf_counter() - begun) / x.size)
    return {
        "ids": table.size(),
        "row_bytes": table.size() * _ROW_BYTES,
        "grown_bytes": sum(b[0] - a[0] for a, b in zip(before, after, strict=True)),
        "peak_bytes": sum(b[1] - a[0] for a, b in zip(before, after, strict=True)),
        "lookups_per_second": {
            name: 1 / statistics.median(times) for name, times in seconds.items()
        },
    }


def build(strategy, table, dtype):
    """Return a compiled model of a table."""
    import keras

    from tfdist.optimizers import LazyAdam

    with strategy.scope():
        inputs = keras.Input((_LOOKUPS,), dtype=dtype)
        pooled = keras.layers.GlobalAveragePooling1D()(table(inputs))
        model = keras.Model(inputs, keras.layers.Dense(1)(pooled))
        model.compile(LazyAdam(), "mse")
    return model


def rows_of(ids):
    """Return examples of ids, without those that do not fill one."""
    return ids[: len(ids) // _LOOKUPS * _LOOKUPS].reshape(-1, _LOOKUPS)


def process_at(address):
    """Return the process of this host that listens at an address."""
    port = split_address(address)[1]
    found = (
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.laddr.port == port and connection.status == psutil.CONN_LISTEN
    )
    return psutil.Process(next(found))


def used(process):
    """Return the memory of a process in bytes, now and at its peak."""
    with open(f"/proc/{process.pid}/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return [1024 * int(lines[name].split()[0]) for name in ("VmRSS", "VmHWM")]


def measure_all(args):
    """Measure one job."""
    check_at_least(_LOOKUPS, ids=args.ids)
    setup = JobSetup(args.workers, args.ps, args.steps, args.repeats)
    [[figures]] = start([setup.job("dynamic", __file__, ids=args.ids)])
    mebibytes = {}
    for name in ("row_bytes", "grown_bytes", "peak_bytes"):
        times = figures[name] / figures["row_bytes"]
        mebibytes[name] = f"{figures[name] / 2**20:.0f} MiB, {times:.2f}"
    speeds = figures["lookups_per_second"]
    table = [
        ["rows in use, with LazyAdam", mebibytes["row_bytes"]],
        ["memory of the servers for them", mebibytes["grown_bytes"]],
        ["peak while they grow", mebibytes["peak_bytes"]],
        *([f"{name}: per second", f"{speed:,.0f}"] for name, speed in speeds.items()),
        *(
            [f"{what}: dynamic / fixed", f"{ratio:.2f}"]
            for what in ("lookups", "training")
            for ratio in [speeds[f"{what}, dynamic"] / speeds[f"{what}, fixed"]]
        ),
    ]
    return figures, format_table([f"{figures['ids']:,} ids of {_WIDTH}", ""], table)


if __name__ == "__main__":
    if is_program():
        run_task(measure)
    else:
        options = [
            ("--workers", 1, "how many workers"),
            ("--ps", 2, "how many servers"),
            ("--ids", 1_000_000, "how many ids"),
            ("--steps", 50, "batches of a turn"),
            ("--repeats", 5, "timed turns of each table"),
        ]
        run_script(__doc__, options, measure_all)
