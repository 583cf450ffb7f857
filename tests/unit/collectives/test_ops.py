"""Rings, instance keys and throttling of TensorFlow's ops."""

import gc
import weakref

import pytest
import tensorflow as tf

from tfdist.collectives.ops import (
    MAX_IN_FLIGHT,
    FlatOps,
    InstanceKeys,
    Throttle,
    rings,
    try_nccl,
    with_elements,
    with_elements_of,
)
from tfdist.collectives.single import SingleCollective

MEBIBYTE = 2**20


@pytest.mark.parametrize(
    ("size_bytes", "ranks", "wanted"),
    [
        (1, 2, 1),
        (MEBIBYTE, 2, 1),
        (8 * MEBIBYTE, 2, 4),
        (8 * MEBIBYTE, 8, 1),
        (64 * MEBIBYTE, 8, 8),
        (2**30, 2, 16),
        (2**40, 2, 16),
    ],
)
def test_a_tensor_goes_round_in_chunks_of_about_a_mebibyte(size_bytes, ranks, wanted):
    assert rings(size_bytes, ranks) == wanted


def test_a_number_depends_on_the_description_alone():
    one, other = InstanceKeys(), InstanceKeys()
    other.base("something else before")

    assert one.base("all_reduce 'a'") == other.base("all_reduce 'a'")
    assert one.base("all_reduce 'a'") != one.base("all_reduce 'b'")


def test_two_ops_of_one_number_are_refused():
    owners = InstanceKeys()
    with pytest.raises(
        RuntimeError,
        match=r"Two collectives have the same key\. Received: 'op \d+' and 'op \d+'\. "
        "Give one of them another name",
    ):
        # Some two of so many have the same 31 bits.
        [owners.base(f"op {i}") for i in range(400_000)]


@pytest.mark.parametrize("base", [0, 2**31 - 1])
def test_a_known_and_an_unknown_number_of_elements_give_one_key(base):
    @tf.function(input_signature=[tf.TensorSpec(None)])
    def unknown(tensor):
        return with_elements_of(base, tensor)

    for shape in ([], [0], [1], [1000], [300, 700]):
        tensor = tf.zeros(shape)

        key = unknown(tensor)
        assert key.dtype == tf.int32
        assert 0 <= int(key) == with_elements(base, int(tf.size(tensor)))


@pytest.mark.parametrize("elements", [2**31, 2**40, 2**62])
def test_a_number_beyond_an_int32_gives_one_key_too(elements, monkeypatch):
    # So large a tensor would not fit into memory; only its size is asked for.
    monkeypatch.setattr(tf, "size", lambda tensor, dtype: tf.constant(elements, dtype))

    assert int(with_elements_of(12345, object())) == with_elements(12345, elements)


def traced(count, throttle, dtype=tf.float32):
    """Trace ops that take throttle; return the function."""

    @tf.function
    def step(x):
        return [
            throttle.add(lambda number=number: tf.identity(x, name=f"op_{number}"))
            for number in range(count)
        ]

    return step.get_concrete_function(tf.TensorSpec([2], dtype))


def waited_for(graph, count):
    """Return which ops each of the ops waits for."""
    ops = [graph.get_operation_by_name(f"op_{number}") for number in range(count)]
    return [[op.name for op in its.control_inputs] for its in ops]


def wanted_order(count):
    return [
        [f"op_{number - MAX_IN_FLIGHT}"] if number >= MAX_IN_FLIGHT else []
        for number in range(count)
    ]


@pytest.mark.parametrize("count", [1, 3 * MAX_IN_FLIGHT + 1])
def test_each_op_waits_for_the_one_so_many_before(count):
    graph = traced(count, Throttle()).graph

    assert waited_for(graph, count) == wanted_order(count)


def test_every_graph_counts_for_itself():
    throttle, count = Throttle(), MAX_IN_FLIGHT + 1

    graphs = [
        traced(count, throttle, dtype).graph for dtype in (tf.float32, tf.float64)
    ]

    assert [waited_for(graph, count) for graph in graphs] == [wanted_order(count)] * 2


def test_a_graph_is_not_kept_alive():
    throttle = Throttle()

    def trace():
        graph = traced(MAX_IN_FLIGHT + 1, throttle).graph
        assert len(throttle._in_flight) == 1
        return weakref.ref(graph)

    graph = trace()
    gc.collect()

    assert graph() is None
    assert len(throttle._in_flight) == 0


@pytest.fixture
def ordered(two_cpus):
    """Ops of two ranks in this process, in the order and the types of GPUs."""

    class Rank(SingleCollective):
        size = 2

        def __init__(self, rank):
            self.rank = rank

    return [
        FlatOps(Rank(rank), device, group_key=77, communication="nccl")
        for rank, device in enumerate(two_cpus)
    ]


def collectives_of(graph):
    """Return the collectives of a graph, without those in branches."""
    return [op for op in graph.get_operations() if op.type.startswith("Collective")]


def comes_after(operation, other):
    """Return whether an operation waits for another one of its graph."""
    waiting, seen = [operation], set()
    while waiting:
        one = waiting.pop()
        if one is other:
            return True
        if one not in seen:
            seen.add(one)
            waiting += [*one.control_inputs, *(tensor.op for tensor in one.inputs)]
    return False


def test_ops_as_on_gpus_run_one_after_the_other(ordered):
    @tf.function
    def traced():
        results = []
        for rank, ops in enumerate(ordered):
            ones = tf.ones([3])
            total = ops.reduce(ones, "sum", "a")
            # None of these needs the values of the others.
            sent = ops.broadcast(ones * (rank + 5.0), 1, "b")
            rows = ops.gather(ones * rank, "c")
            swapped = ops.all_to_all(tf.ones([2, 3]) * rank, "d")
            counts = ops.reduce(tf.constant([2**31 - 1, rank]), "max", "e")
            results.append([total, sent, rows, swapped, counts])
        return results

    graph = traced.get_concrete_function().graph
    first, second = traced()

    for number in range(2):
        own = collectives_of(graph)[5 * number : 5 * number + 5]
        assert all(comes_after(b, a) for a, b in zip(own, own[1:], strict=False))
        assert {op.inputs[0].dtype for op in own if "Reduce" in op.type} == {
            tf.float32,
            tf.int64,
        }
    for total, sent, rows, swapped, counts in (first, second):
        assert total.numpy().tolist() == [2.0] * 3
        assert sent.numpy().tolist() == [6.0] * 3
        assert rows.numpy().tolist() == [[0.0] * 3, [1.0] * 3]
        assert swapped.numpy().tolist() == [[0.0] * 3, [1.0] * 3]
        assert (counts.dtype, counts.numpy().tolist()) == (tf.int32, [2**31 - 1, 1])


def test_ranks_in_a_graph_do_not_wait_for_each_other(ordered):
    @tf.function
    def traced():
        return [ops.reduce(tf.ones([3]), "sum", "f") for ops in ordered]

    one, other = collectives_of(traced.get_concrete_function().graph)

    assert not comes_after(other, one)


def test_ops_in_branches_keep_their_place(ordered):
    """Each rank's branch comes after its first op and before its last one."""

    @tf.function
    def traced(wanted):
        results = []
        for ops in ordered:
            ops.reduce(tf.ones([2]), "sum", "g")
            results.append(
                tf.cond(
                    wanted,
                    lambda ops=ops: ops.reduce(tf.ones([2]), "sum", "h"),
                    lambda: tf.zeros([2]),
                )
            )
            ops.broadcast(tf.ones([2]), 0, "i")
        return results

    graph = traced.get_concrete_function(tf.constant(True)).graph
    types = (
        "CollectiveReduceV2",
        "If",
        "CollectiveBcastSendV2",
        "CollectiveBcastRecvV2",
    )
    operations = [op for op in graph.get_operations() if op.type in types]

    for first, branch, last in (operations[:3], operations[3:]):
        assert comes_after(branch, first)
        assert comes_after(last, branch)
    assert [total.numpy().tolist() for total in traced(tf.constant(True))] == [
        [2.0, 2.0]
    ] * 2


def test_bfloat16_is_summed_in_float32_on_gpus(ordered):
    @tf.function
    def traced():
        thirds = tf.constant([1 / 3], tf.bfloat16)
        return [ops.reduce(thirds, "sum", "j") for ops in ordered]

    for total in traced():
        assert (total.dtype, float(total[0])) == (tf.bfloat16, 2 * 0.333984375)


def test_the_devices_of_a_process_try_nccl_together(two_cpus):
    try_nccl(two_cpus, 2, seconds=60)
