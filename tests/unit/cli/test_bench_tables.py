"""The tables of the benchmarks, cell by cell."""

from tfdist_cli.bench_tables import (
    allreduce_table,
    backup_table,
    horovod_allreduce_table,
    horovod_training_table,
    memory_table,
    training_table,
)


def spread(median):
    return {"median": median, "low": median - 0.1, "high": median + 0.1}


def cells(table):
    """Return the cells of a table, without its ruler."""
    header, _, *rows = table.splitlines()
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in (header, *rows)]


def test_the_all_reduce():
    row = {
        "bytes": 8 * 2**20,
        "seconds": 0.0105,
        "bus_bytes_per_second": 8e8,
        "single_ring_seconds": 0.021,
        "times_single_ring": spread(2.0),
    }

    assert cells(allreduce_table([row]))[1:] == [
        ["8 MiB", "10.50 ms", "0.80 GB/s", "21.00 ms", "2.00 [1.90, 2.10]"]
    ]


def test_training_has_a_column_for_each_batch_size():
    kinds = ("plain", "alone", "apart", "weak", "strong")
    figures = [
        {
            "batch_size": batch_size,
            "processes": 2,
            "step_seconds": {kind: i / 1000 for i, kind in enumerate(kinds, 1)},
            "speed_against_plain": spread(1.0),
            "weak_efficiency": spread(0.8),
            "strong_efficiency": spread(0.7),
            "waiting_share": spread(0.2),
        }
        for batch_size in (64, 512)
    ]

    header, *rows = cells(training_table(figures))

    assert header == ["2 processes", "batch 64", "batch 512"]
    assert [row[1] for row in rows] == [
        *("1.00 ms", "2.00 ms", "3.00 ms", "4.00 ms", "5.00 ms"),
        *("1.00 [0.90, 1.10]", "0.80 [0.70, 0.90]"),
        *("0.70 [0.60, 0.80]", "0.20 [0.10, 0.30]"),
    ]
    assert all(row[1] == row[2] for row in rows)


def horovod_allreduce(*ways):
    return {
        "bytes": 8 * 2**20,
        "seconds": {way: i / 1000 for i, way in enumerate(ways, 1)},
        "bus_bytes_per_second": {way: i * 1e9 for i, way in enumerate(ways, 1)},
        "share_of_bandwidth": {"graph": spread(1.0), "eager": spread(0.9)},
    }


def test_the_all_reduce_on_horovod():
    row = horovod_allreduce("tfdist", "graph", "eager", "torch")

    header, *rows = cells(horovod_allreduce_table([row]))

    assert header[4] == "torch with Gloo"
    assert rows == [
        [
            "8 MiB",
            *("1.00 ms, 1.00 GB/s", "2.00 ms, 2.00 GB/s", "3.00 ms, 3.00 GB/s"),
            *("4.00 ms, 4.00 GB/s", "1.00 [0.90, 1.10]", "0.90 [0.80, 1.00]"),
        ]
    ]


def test_a_line_says_how_torch_is_installed():
    table, _, line = horovod_allreduce_table(
        [horovod_allreduce("tfdist", "graph", "eager")]
    ).rpartition("\n\n")

    assert len(cells(table)[0]) == 6
    assert line.startswith("torch is not installed and not measured: pip install torch")


def horovod_training(*kinds):
    return {
        "batch_size": 64,
        "processes": 2,
        "step_seconds": {kind: i / 1000 for i, kind in enumerate(kinds, 1)},
        "weak_efficiency": spread(0.8),
    }


def test_training_on_horovod_beside_its_own_optimizer():
    figures = horovod_training("alone", "weak", "their_alone", "their_weak") | {
        "their_weak_efficiency": spread(0.75),
        "efficiency_against_theirs": spread(1.05),
        "speed_against_theirs": spread(1.1),
    }

    header, *rows = cells(horovod_training_table([figures]))

    assert header == ["2 processes", "batch 64"]
    assert [row[1] for row in rows] == [
        *("1.00 ms", "2.00 ms", "0.80 [0.70, 0.90]", "3.00 ms", "4.00 ms"),
        *("0.75 [0.65, 0.85]", "1.05 [0.95, 1.15]", "1.10 [1.00, 1.20]"),
    ]


def test_a_line_says_how_tf_keras_is_installed():
    table, _, line = horovod_training_table(
        [horovod_training("alone", "weak")]
    ).rpartition("\n\n")

    assert len(cells(table)) == 4
    assert "Horovod's own optimizer not measured: pip install tf-keras" in line


def test_memory():
    mebibyte = 2**20
    model = {
        "gradient_bytes": 16 * mebibyte,
        "plain_peak_bytes": 500 * mebibyte,
        "distributed_peak_bytes": 540 * mebibyte,
        "added_times_gradients": 2.5,
    }
    figures = {
        "models": [model],
        "growth_times_gradients": 2.25,
        "constant_bytes": 4 * mebibyte,
    }

    assert cells(memory_table(figures))[1:] == [
        ["16 MiB", "500 MiB", "540 MiB", "40 MiB", "2.50"],
        ["with the gradients", "", "", "", "2.25"],
        ["without any", "", "", "4 MiB", ""],
    ]


def test_backups():
    beside = {
        "hold_seconds": spread(0.005),
        "disk_seconds": spread(0.0205),
        "bytes": 640 * 2**10,
    }
    meanwhile = {"hold_seconds": spread(0.03), "disk_seconds": None, "bytes": None}
    figures = {
        "processes": 2,
        "epoch_seconds": {"none": 0.5, "tfdist": 0.505, "keras": 0.55},
        "cost": {"tfdist": spread(0.01), "keras": spread(0.1)},
        "saves": {"tfdist": beside, "keras": meanwhile},
    }

    header, *rows = cells(backup_table(figures))

    assert header[0] == "backup, 2 processes"
    assert rows == [
        ["none", "500.00 ms", "", "", "", ""],
        [
            *("each epoch", "505.00 ms", "1.0 % [-9.0, 11.0]"),
            *("5.00 ms", "20.50 ms", "640 KiB"),
        ],
        [
            *("Keras's own, each epoch", "550.00 ms", "10.0 % [0.0, 20.0]"),
            *("30.00 ms", "", ""),
        ],
    ]
