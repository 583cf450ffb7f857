"""The collectives of TensorFlow, MPI and Horovod between real processes.

TensorFlow takes seconds to start, so each group of processes makes many checks and
hands the results over; the tests compare them with NumPy.
"""

import os
import re
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import tfdist
from tfdist.cluster import detect
from tfdist.testing import cluster

NEEDS_HOROVOD = pytest.mark.requires("horovodrun")
SECONDS = 1200
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
# With the tolerance of each.
FLOATS = {"bfloat16": 1e-2, "float16": 1e-3, "float32": 1e-6, "float64": 1e-15}
REDUCTIONS = ["sum", "mean", "min", "max"]


def connect(**options):
    if "HOROVOD_RANK" in os.environ:
        from tfdist.collectives.horovod.collective import HorovodCollective

        return HorovodCollective(**options)
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        from tfdist.collectives.mpi import MPICollective

        return MPICollective(**options)
    from tfdist.collectives.tensorflow import TensorFlowCollective

    return TensorFlowCollective(detect(), **options)


def numbers(dtype, rank):
    """Return what a rank reduces: the type's extremes, and small numbers."""
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return [
            info.min if rank else info.max,
            info.max if rank else 0,
            rank,
            7,
            5 * rank,
        ]
    return [0.5 + rank, -2.0, 1.0 / 3.0, -0.0, 1000.0 * rank]


def reduced_by_numpy(dtype, reduction, size):
    """Compute what the ranks should find, in the type's own arithmetic."""
    if dtype in INTEGERS:
        columns = [[int(v) for v in numbers(dtype, rank)] for rank in range(size)]
        combine = {
            "sum": sum,
            "mean": lambda column: sum(column) // size,
            "min": min,
            "max": max,
        }[reduction]
        exact = [combine(column) for column in zip(*columns, strict=True)]
        modulus = 2 ** np.iinfo(dtype).bits
        low = int(np.iinfo(dtype).min)
        return [(value - low) % modulus + low for value in exact]
    stack = np.stack([np.array(numbers(dtype, rank)) for rank in range(size)])
    return getattr(stack, reduction)(0).tolist()


def all_types_and_shapes(options):
    """Make the checks that end well, and return what every rank found."""
    import tensorflow as tf

    # On one thread, operations would run in their order.
    tf.config.threading.set_inter_op_parallelism_threads(4)
    collective = connect(**options)
    rank, size = collective.rank, collective.size
    found = {"place": (rank, size)}

    for dtype in (*INTEGERS, *FLOATS):
        tensor = tf.constant(numbers(dtype, rank), dtype)
        for reduction in REDUCTIONS:
            (result,) = collective.all_reduce([tensor], reduction, name="types")
            assert result.dtype == tensor.dtype
            kind = int if dtype in INTEGERS else float
            found[dtype, reduction] = [kind(v) for v in result.numpy()]

    mixed = [tf.fill([2, 3], rank + 1), tf.zeros([0, 4]), tf.fill([2], rank + 1.0)]
    grouped = collective.all_reduce(mixed, name="mixed")
    found["mixed"] = [(t.dtype.name, t.numpy().tolist()) for t in grouped]
    bools = [tf.constant([True, rank == 0, False])]
    found["bools"] = collective.all_reduce(bools, "min", name="bools")[0].numpy()

    found |= gathered(collective)
    found |= broadcasted(collective)
    found |= swapped(collective)
    found |= summed_on_one(collective)
    found |= owned(collective)
    found |= sliced(collective)
    found |= in_graphs(collective)
    found["exchange"] = [collective.exchange("x", {"rank": rank}) for _ in range(3)]
    collective.barrier()
    random = tf.random.stateless_normal([100_000], [rank, 7])
    total = collective.all_reduce([random], "sum", name="random")[0]
    found["bits"] = total.numpy().tobytes()
    return found


def gathered(collective):
    import tensorflow as tf

    rank = collective.rank
    rows = {
        "differing": tf.fill([rank, 2], float(rank)),
        "many": tf.range(1000 * (rank + 1)),
        "string": tf.constant([f"rank {rank}", "", "日本"][: rank + 1]),
        "no string": tf.constant([], tf.string),
        "bfloat16": tf.cast(tf.constant([rank, 1 / 3]), tf.bfloat16),
        "uint64": tf.constant([2**64 - 1 - rank], tf.uint64),
    }
    found = {}
    for name, tensor in rows.items():
        result = collective.all_gather(tensor, name=name)
        assert result.dtype == tensor.dtype
        found["gather", name] = result.numpy().tolist()
    return found


def special(rank):
    """Return floats of which every bit counts: NaN with a payload, -0.0, subnormals."""
    bits = np.array(
        [0x7FC00001 + rank, 0xFFC12345, 0x80000000, 1, 0x7F800000], "uint32"
    )
    return bits.view("float32")


def broadcasted(collective):
    import tensorflow as tf

    rank = collective.rank
    found = {}
    for root in range(collective.size):
        tensors = [
            tf.constant(special(rank)),
            tf.constant([rank == root, rank != root]),
            tf.constant([2**64 - 1 - rank], tf.uint64),
            tf.zeros([0]),
        ]
        results = collective.broadcast(tensors, root, name="tensors")
        found["broadcast", root] = [t.numpy().tobytes() for t in results]
    return found


def swapped(collective):
    """Send each rank a row, eagerly and in a graph."""
    import tensorflow as tf

    rank, size = collective.rank, collective.size
    rows = tf.constant([special(10 * rank + to) for to in range(size)])
    eager = collective.all_to_all(rows, name="rows")
    halves = tf.cast(tf.range(size)[:, tf.newaxis] + 10 * rank, tf.bfloat16)
    traced = tf.function(lambda x: collective.all_to_all(x, name="halves"))(halves)
    # The same name and number of elements, in another shape.
    for shape in ([size], [size, 1]):
        numbers = tf.reshape(tf.range(size) + 10 * rank, shape)
        flat = tf.reshape(collective.all_to_all(numbers, name="flat"), [-1])
    return {
        "swapped": (eager.numpy().tobytes(), traced.numpy().tolist()),
        "swapped numbers": flat.numpy().tolist(),
    }


def summed_on_one(collective):
    """Sum small and large tensors of each float type on every rank in turn."""
    import tensorflow as tf

    rank = collective.rank
    found = {}
    for root in range(collective.size):
        for name in ("float16", "float32", "float64"):
            # The second is too large to be packed.
            tensors = [tf.fill([n], tf.cast(rank + 0.5, name)) for n in (3, 2**18)]
            roots = [root, root]
            results = collective.reduce(tensors, roots, name=f"{name} on {root}")
            on_root = [sorted({*t.numpy().tolist()}) for t in results]
            shapes = [tuple(t.shape) for t in results]
            found["sum", root, name] = shapes, on_root if rank == root else None
    return found


def owned(collective):
    """Sum tensors on their owners, one of an unknown shape, and share them again."""
    import tensorflow as tf

    rank, size = collective.rank, collective.size
    roots = [size - 1, 0, size - 1]
    found = {}

    @tf.function
    def travel(tensors):
        sums = collective.reduce(tensors, roots, name="owned")
        return sums, collective.share(sums, roots, name="owned")

    unknown = tf.TensorSpec([None, 2], tf.float32)
    known = [tf.TensorSpec([n], tf.float32) for n in (3, 5)]
    tensors = [tf.fill(shape, rank + 1.0) for shape in ([2, 2], [3], [5])]
    sums, shared = travel.get_concrete_function([unknown, *known])(tensors)
    found["owned"] = [
        total.numpy().tolist() if root == rank else None
        for total, root in zip(sums, roots, strict=True)
    ]
    found["shared"] = [tensor.numpy().tolist() for tensor in shared]
    halves = [tf.cast(tensor, tf.bfloat16) for tensor in tensors]
    eager = collective.share(
        collective.reduce(halves, roots, name="halves"), roots, name="halves"
    )
    found["halves"] = [tensor.numpy().tolist() for tensor in eager]
    return found


def sliced(collective):
    import tensorflow as tf

    rank = collective.rank
    slices = tf.IndexedSlices(
        tf.fill([rank, 2], rank + 1.0), tf.range(rank, dtype=tf.int64), [3, 2]
    )
    found = {}
    for reduction in ("sum", "mean"):
        (result,) = collective.all_reduce([slices], reduction, name="slices")
        assert isinstance(result, tf.IndexedSlices)
        found["slices", reduction] = tf.convert_to_tensor(result).numpy().tolist()
    return found


def sent_beside_a_branch(collective):
    """Send late on one rank, then in a branch that uses a variable, then after it."""
    import tensorflow as tf

    rank, variable = collective.rank, tf.Variable(1.0)

    def late(x):
        threading.Event().wait(0.0 if rank else 0.5)
        return x

    def summed(x, name):
        return collective.all_reduce([tf.ensure_shape(x, [])], name=name)[0]

    @tf.function
    def send(x):
        first = summed(tf.numpy_function(late, [x], tf.float32), "before")

        def inside():
            return variable.assign(summed(variable * x, "inside"))

        branch = tf.cond(x > 0.0, inside, variable.read_value)
        return first, branch, summed(x, "after")

    return [[float(t) for t in send(tf.constant(rank + 1.0))] for _ in range(2)]


def in_graphs(collective):
    import tensorflow as tf

    rank = collective.rank
    traces = []

    @tf.function(
        input_signature=[tf.TensorSpec(None), tf.TensorSpec([None], tf.string)]
    )
    def unknown(numbers, strings):
        total = collective.all_reduce([numbers], name="unknown")[0]
        return (
            total,
            collective.all_gather(strings, name="strings"),
            collective.broadcast([numbers], 1, name="unknown")[0],
        )

    found = {"unknown shapes": []}
    for shape in ([2, 3], [], [0], [5]):
        results = unknown(tf.fill(shape, rank + 1.0), tf.fill([rank], "a"))
        found["unknown shapes"].append([result.numpy().tolist() for result in results])

    @tf.function
    def traced(x, label):
        traces.append(label)
        first = collective.all_reduce([x], name="first")[0]
        return first, collective.all_reduce([first], "max", name="second")[0]

    # The last rank traces again for every call, the others do not.
    is_last = rank == collective.size - 1
    found["retraced"] = [
        [float(t) for t in traced(tf.constant(rank + 1.0), i if is_last else 0)]
        for i in range(3)
    ]
    found["traces"] = len(traces)

    found["branches"] = sent_beside_a_branch(collective)
    # Large enough to go round in several rings.
    large = tf.function(lambda x: collective.all_reduce([x], name="large")[0])
    total = large(tf.fill([3 * 2**20 + 1], rank + 1.0)).numpy()
    found["large"] = (total.shape, total.min(), total.max())
    return found


@pytest.fixture(
    scope="module",
    params=[
        "tensorflow-2",
        pytest.param("tensorflow-3", marks=pytest.mark.slow),
        pytest.param("nccl-3", marks=pytest.mark.slow),
        "mpi-3",
        pytest.param("horovod-3", marks=[NEEDS_HOROVOD, pytest.mark.slow]),
    ],
)
def found(request):
    """Return what all ranks found, by rank, for each engine and number of processes.

    On CPUs "nccl" is a ring of TensorFlow in the order and the types of GPUs.
    """
    engine, _, size = request.param.partition("-")
    is_as_on_gpus = engine == "nccl"
    return cluster(
        all_types_and_shapes,
        size=int(size),
        args=({"communication": "nccl"} if is_as_on_gpus else {},),
        timeout_seconds=SECONDS,
        collective="tensorflow" if is_as_on_gpus else engine,
    ).values


def of_every_rank(found, key):
    """Return a finding that must be the same on every rank."""
    values = [its[key] for its in found]
    assert all(value == values[0] for value in values)
    return values[0]


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_numbers_are_reduced_in_their_own_type(found, reduction):
    for dtype in (*INTEGERS, *FLOATS):
        values = of_every_rank(found, (dtype, reduction))
        wanted = reduced_by_numpy(dtype, reduction, len(found))
        # The mean of extremes may need a sum that only a wider type can hold.
        if reduction == "mean" and dtype in ("int32", "int64", "uint64"):
            values, wanted = values[2:], wanted[2:]
        np.testing.assert_allclose(
            values, wanted, rtol=FLOATS.get(dtype, 0), err_msg=dtype
        )


def test_tensors_of_mixed_types_and_shapes_are_reduced_together(found):
    total = sum(range(1, len(found) + 1))

    assert of_every_rank(found, "mixed") == [
        ("int32", [[total] * 3] * 2),
        ("float32", []),
        ("float32", [total] * 2),
    ]
    assert [its["bools"].tolist() for its in found] == [[True, False, False]] * len(
        found
    )


def test_rows_of_all_ranks_are_joined_in_order(found):
    ranks = range(len(found))
    b = "日本".encode()
    third = float(np.float32(0.333984375))
    wanted = {
        "differing": [[float(r)] * 2 for r in ranks for _ in range(r)],
        "many": [i for r in ranks for i in range(1000 * (r + 1))],
        "string": [
            text for r in ranks for text in [f"rank {r}".encode(), b"", b][: r + 1]
        ],
        "no string": [],
        "bfloat16": [value for r in ranks for value in (float(r), third)],
        "uint64": [2**64 - 1 - r for r in ranks],
    }
    for name, rows in wanted.items():
        assert of_every_rank(found, ("gather", name)) == rows, name


def test_a_broadcast_gives_the_bits_of_every_root(found):
    for root in range(len(found)):
        floats, bools, large, nothing = of_every_rank(found, ("broadcast", root))
        assert floats == special(root).tobytes()
        assert np.frombuffer(bools, "bool").tolist() == [True, False]
        assert np.frombuffer(large, "uint64").tolist() == [2**64 - 1 - root]
        assert nothing == b""


def test_each_rank_gets_the_rows_that_are_meant_for_it(found):
    ranks = range(len(found))
    for rank, its in enumerate(found):
        rows, halves = its["swapped"]
        assert rows == np.array([special(10 * r + rank) for r in ranks]).tobytes()
        assert halves == [[10.0 * r + rank] for r in ranks]
        assert its["swapped numbers"] == [10 * r + rank for r in ranks]


def test_a_sum_reaches_the_rank_that_needs_it(found):
    total = sum(rank + 0.5 for rank in range(len(found)))
    for root in range(len(found)):
        for name in ("float16", "float32", "float64"):
            for rank, its in enumerate(found):
                shapes, sums = its["sum", root, name]
                assert shapes == [(3,), (2**18,)]
                assert sums == ([[total]] * 2 if rank == root else None)


def test_owners_get_sums_and_all_get_what_owners_have(found):
    total = sum(range(1, len(found) + 1))
    wanted = [np.full(shape, total).tolist() for shape in ([2, 2], [3], [5])]
    roots = [len(found) - 1, 0, len(found) - 1]
    for rank, its in enumerate(found):
        assert its["owned"] == [
            each if root == rank else None
            for each, root in zip(wanted, roots, strict=True)
        ]
    assert of_every_rank(found, "shared") == wanted
    assert of_every_rank(found, "halves") == wanted


def test_sparse_rows_add_up(found):
    wanted = np.zeros([3, 2])
    for rank in range(len(found)):
        wanted[:rank] += rank + 1

    np.testing.assert_allclose(of_every_rank(found, ("slices", "sum")), wanted)
    np.testing.assert_allclose(
        of_every_rank(found, ("slices", "mean")), wanted / len(found), rtol=1e-6
    )


def test_shapes_may_be_unknown_until_the_graph_runs(found):
    size = len(found)
    total = float(sum(range(1, size + 1)))
    strings = [b"a"] * sum(range(size))

    assert of_every_rank(found, "unknown shapes") == [
        [[[total] * 3] * 2, strings, [[2.0] * 3] * 2],
        [total, strings, 2.0],
        [[], strings, []],
        [[total] * 5, strings, [2.0] * 5],
    ]


def test_a_branch_sends_in_its_turn(found):
    total = float(sum(range(1, len(found) + 1)))

    first, second = [total, total, total], [total, total**2, total]
    assert of_every_rank(found, "branches") == [first, second]


def test_one_rank_may_trace_again(found):
    total = float(sum(range(1, len(found) + 1)))

    assert of_every_rank(found, "retraced") == [[total, total]] * 3
    assert [its["traces"] for its in found] == [1] * (len(found) - 1) + [3]


def test_ranks_know_their_place_and_have_the_same_bits(found):
    size = len(found)
    total = float(sum(range(1, size + 1)))

    assert [its["place"] for its in found] == [(rank, size) for rank in range(size)]
    assert of_every_rank(found, "exchange") == [[{"rank": r} for r in range(size)]] * 3
    assert of_every_rank(found, "large") == ((3 * 2**20 + 1,), total, total)
    assert len(of_every_rank(found, "bits")) == 400_000


# What follows ends in errors: each in processes of its own, whose message comes back.


def quick(monkeypatched):
    """Make constants small, so that what takes a minute takes a second."""
    import importlib

    for name, value in monkeypatched.items():
        module, _, constant = name.rpartition(".")
        setattr(importlib.import_module(f"tfdist.liveness.{module}"), constant, value)


QUICK = {
    "diagnosis._BELIEVED_SECONDS": 0.5,
    "lifeline._SEND_PLAN_SECONDS": 0.5,
    "lifeline.BEAT_SECONDS": 0.1,
    "lifeline._FAREWELL_SECONDS": 0.5,
    "hub.BEAT_SECONDS": 0.1,
}


PATIENT_SECONDS = 1000.0


def give_up_once(collective, seconds, condition):
    """Let rank 0 give up a call after so many seconds, from when a condition holds.

    A starved rank may be late in any call before.
    """
    hub = collective.control._hub
    if hub is None:
        return
    assert hub._timeout_seconds == PATIENT_SECONDS

    def wait():
        while not condition(hub._reports):
            threading.Event().wait(0.05)
        hub._timeout_seconds = seconds

    threading.Thread(target=wait, daemon=True).start()


def message_of(call):
    """Return what a call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def different_calls(how):
    import tensorflow as tf

    quick(QUICK)
    collective = connect()
    rank = collective.rank
    first = tf.ones([2 + (how == "shape" and rank)])
    names = ["a", "b"] if how == "order" and rank else ["b", "a"]

    def call():
        for name in names:
            collective.all_reduce([first], name=name)

    return message_of(call), message_of(lambda: collective.barrier())


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            "order",
            "rank 0 .* is in all_reduce 'b' .*, rank 1 .* in all_reduce 'a' .*Make the "
            "same calls, with the same shapes and in the same order, on every rank",
        ),
        # In the first, the ranks have told which GPUs they have.
        ("shape", "rank 0 .* of 2 elements, rank 1 .* of 3 elements .*joint call 2 on"),
    ],
)
def test_different_calls_are_an_error_that_names_them(how, words):
    result = cluster(different_calls, args=(how,), timeout_seconds=SECONDS)

    for first, later in result.values:
        with pytest.raises(RuntimeError, match=f"^RuntimeError: The ranks .*{words}"):
            raise RuntimeError(first)
        assert later == first


@pytest.mark.parametrize(
    ("how", "words"),
    [
        pytest.param(
            "order",
            r"'b' .* on ranks \[0\]; all_reduce 'a' .* on ranks \[1\]",
            marks=pytest.mark.slow,
        ),
        ("shape", r"of shapes \[\(2,\)\] on .*; .* of shapes \[\(3,\)\] on"),
    ],
)
def test_mpi_too_refuses_different_calls(how, words):
    result = cluster(
        different_calls, args=(how,), timeout_seconds=SECONDS, collective="mpi"
    )

    for first, _ in result.values:
        text = f"^RuntimeError: The ranks are in different collectives.*{words}"
        with pytest.raises(RuntimeError, match=text):
            raise RuntimeError(first)


@NEEDS_HOROVOD
@pytest.mark.slow
def test_horovod_too_refuses_different_calls():
    result = cluster(
        different_calls, args=("shape",), timeout_seconds=SECONDS, collective="horovod"
    )

    errors = [first for first, _ in result.values]
    # The error of the other rank may arrive before a rank's own.
    assert any("Mismatched ALLREDUCE tensor shapes" in error for error in errors)


def different_graphs():
    import tensorflow as tf

    quick(QUICK)
    collective = connect(timeout_seconds=PATIENT_SECONDS)
    name = f"of rank {collective.rank}"

    @tf.function
    def step(x):
        x = collective.all_reduce([x], name="same")[0]
        return collective.all_reduce([x], name=name)[0]

    traced = step.get_concrete_function(tf.TensorSpec([2], tf.float32))
    collective.barrier()
    # Rank 0 finds both ranks beyond their time at once.
    give_up_once(
        collective,
        0.5,
        lambda of: all(of[rank].plan and of[rank].what == "step" for rank in range(2)),
    )

    def call():
        with collective.call("step"):
            traced(tf.ones([2]))

    return message_of(call)


def test_different_graphs_are_an_error_that_names_their_difference():
    result = cluster(different_graphs, timeout_seconds=SECONDS, collective="tensorflow")

    for message in result.values:
        with pytest.raises(
            RuntimeError,
            match="^RuntimeError: The ranks run different graphs in step: collective "
            "number 1 is all_reduce '?of rank 0.* on rank 0 .* and all_reduce '?of "
            "rank 1.* on rank 1",
        ):
            raise RuntimeError(message)


def too_late():
    quick(QUICK)
    collective = connect(timeout_seconds=PATIENT_SECONDS)
    collective.barrier("begin")

    def is_apart(reports):
        first, other = reports[0], reports[1]
        waits = first.what == "the exchange of barrier end" and not other.inside
        return waits and first.call == other.call + 1

    give_up_once(collective, 2.0, is_apart)
    if collective.rank == 1:
        line = collective.control
        with line._arrived:
            line._arrived.wait_for(lambda: line.failure, SECONDS)
        return message_of(line.check)
    return message_of(lambda: collective.barrier("end"))


def test_a_rank_that_does_not_come_is_named():
    result = cluster(too_late, timeout_seconds=SECONDS, collective="tensorflow")

    for message in result.values:
        with pytest.raises(
            RuntimeError,
            match=r"^TimeoutError: rank 0 .* has waited \d+ s in the exchange of "
            r"barrier end\. rank 1 .* is in no joint call.*raise timeout_seconds of "
            r"the strategy \(now 2\)",
        ):
            raise RuntimeError(message)


def one_goes(how):
    """Let the last rank go, while the others wait for it."""
    import tensorflow as tf

    quick(QUICK)
    collective = connect()
    ones = tf.ones([2])
    collective.all_reduce([ones], name="together")
    # A rank may be done while another still fetches its last part from it.
    collective.barrier("all have it")
    if collective.rank == collective.size - 1:
        if how == "raise":
            raise ValueError("bad weather")
        os.kill(os.getpid(), signal.SIGKILL)
    message = message_of(lambda: collective.all_reduce([ones], name="alone"))
    leave_a_note(message)


def leave_a_note(text):
    """Write what was found where the test finds it, whatever ends this process."""
    path = os.path.join(os.environ["NOTES"], f"rank.{tfdist.rank()}")
    with open(f"{path}.unfinished", "w") as file:
        file.write(text)
    os.replace(f"{path}.unfinished", path)


def one_goes_in_its_own_session(how):
    """Go on until the others have left their notes, before the launcher ends them."""
    program = (
        "import importlib.util as u, sys\n"
        f"spec = u.spec_from_file_location('test_collectives', {__file__!r})\n"
        "module = u.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        f"module.one_goes({how!r})\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program])
    notes = [f"{os.environ['NOTES']}/rank.{r}" for r in range(tfdist.size() - 1)]
    try:
        while not all(map(os.path.exists, notes)):
            threading.Event().wait(0.1)
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            "raise",
            r"rank 2 .* has ended with ValueError: bad weather\. Look at the end",
        ),
        ("kill", r"rank 2 .* is gone: its connection closed\. Look at the end of its"),
    ],
)
def test_a_rank_that_goes_is_named_by_the_others(how, words, tmp_path):
    cluster(
        one_goes_in_its_own_session,
        size=3,
        args=(how,),
        env={"NOTES": str(tmp_path)},
        timeout_seconds=SECONDS,
        collective="tensorflow",
    )

    for rank in range(2):
        message = (tmp_path / f"rank.{rank}").read_text()
        with pytest.raises(RuntimeError, match=f"^ConnectionError: {words}"):
            raise RuntimeError(message)


def with_nccl_that_does_not_start(how):
    """Connect ranks that see a GPU each, whose first sum fails or lacks a rank."""
    import tensorflow as tf

    from tfdist.collectives import tensorflow as module

    rank = detect().rank
    module.cards = lambda: [f"card {rank}"]
    ones = tf.ones
    if rank == 1 and how == "fails":
        tf.ones = lambda shape: ones([2])
    try_nccl = module.try_nccl

    def try_it(devices, size, seconds):
        assert seconds == PATIENT_SECONDS
        if rank == 0 or how == "fails":
            try_nccl(devices, size, 5.0)

    module.try_nccl = try_it
    collective = connect(start_timeout_seconds=PATIENT_SECONDS)
    tf.ones = ones
    total = tf.function(lambda x: collective.all_reduce([x], name="x")[0])
    return collective.communication, float(total(tf.constant(rank + 1.0)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "words"), [("fails", "Shape mismatch|timed out"), ("hangs", "timed out")]
)
def test_a_ring_replaces_nccl_that_does_not_start(how, words):
    result = cluster(
        with_nccl_that_does_not_start,
        args=(how,),
        timeout_seconds=SECONDS,
        collective="tensorflow",
    )

    assert [*result.values] == [("ring", 3.0)] * 2
    assert re.search(
        rf"tfdist: NCCL does not start \(.*({words}).*\); NCCL_DEBUG=INFO shows more\. "
        "TensorFlow's ring joins the ranks",
        result.logs[0],
    )
