"""Predictions from measurements made by hand, by numbers worked out by hand."""

from dataclasses import replace

import pytest

from tfdist.estimate import Link, predict
from tfdist.estimate.prediction import (
    ACCUMULATED,
    FP16,
    SHARDED,
    is_compressed,
    stops_paying,
)
from tfdist.estimate.profile import Memory, Message

MIB = 2**20
# 1 Gbit/s, 100 us.
NETWORK = Link(1e-4, 8e-9)


def test_a_single_process_is_as_it_was_measured(measured):
    alone = predict(measured, 1)
    assert alone.seconds == pytest.approx(0.1)
    assert alone.examples_per_second == pytest.approx(640)
    assert alone.efficiency == pytest.approx(1)
    assert alone.epochs_per_hour == pytest.approx(3600 / 10)
    assert alone.sent_bytes == 0
    assert alone.peak_bytes == 632 * MIB


def test_on_this_machine_every_message_delays_the_step(measured):
    two = predict(measured, 2)
    # 10 ms, of which each of the two messages has 1 ms whatever its size.
    assert two.seconds == pytest.approx(0.110)
    assert two.efficiency == pytest.approx(1 / 1.1)
    assert two.sent_bytes == 8e6
    # The same epoch has half as many steps.
    assert two.epochs_per_hour == pytest.approx(2 * 3600 / 11)


def test_between_hosts_the_network_decides_while_the_step_computes(measured):
    cluster = replace(measured, network=NETWORK, per_host=1)
    # The first message begins at 90 ms. Of 2 MB, 16 ms go over the network; of 6 MB, 48
    # more; each of the four hops has 0.1 ms and half of the engine's 1 ms.
    seconds = 0.090 + 0.016 + 0.048 + 4 * (1e-4 + 0.5e-3)
    assert predict(cluster, 2).seconds == pytest.approx(seconds)
    # With half the bytes the first is done before the second begins, which the sum of
    # the first has delayed by 1 ms.
    seconds = 0.101 + 0.024 + 2 * (1e-4 + 0.5e-3)
    assert predict(cluster, 2, FP16).seconds == pytest.approx(seconds)
    assert predict(cluster, 2, FP16).sent_bytes == 4e6


def test_more_ranks_send_more_messages(measured):
    cluster = replace(measured, network=NETWORK, per_host=1)
    hops = 2 * 2 * 7
    seconds = 0.090 + 8e6 * 2 * 7 / 8 * 8e-9 + hops * (1e-4 + 0.5e-3)
    assert predict(cluster, 8).seconds == pytest.approx(seconds)
    assert predict(cluster, 8).sent_bytes == pytest.approx(14e6)


def test_ranks_of_one_host_do_not_use_the_network(measured):
    cluster = replace(measured, network=NETWORK, per_host=2)
    assert predict(cluster, 2).seconds == predict(measured, 2).seconds
    assert predict(cluster, 4).seconds > predict(measured, 4).seconds


def test_horovod_sends_together_what_waits(make_measured, make_profile):
    measured = make_measured(engine="horovod", network=NETWORK)
    # The second waits for nothing else: two messages.
    assert predict(measured, 2).seconds == pytest.approx(0.090 + 0.064 + 4 * 0.6e-3)
    messages = [Message("all_reduce", 2e6, 1.0), Message("all_reduce", 6e6, 1.0)]
    profile = make_profile(2, messages=messages)
    together = replace(measured, profiles={1: [make_profile()], 2: [profile]})
    assert predict(together, 2).seconds == pytest.approx(0.1 + 0.064 + 2 * 0.6e-3)


def test_mpi_chooses_few_messages(make_measured):
    measured = make_measured(engine="mpi", network=NETWORK)
    # Of 64 ranks, there and back, for two messages; two ranks need one exchange.
    hops = 2 * 2 * 6
    seconds = 0.090 + 8e6 * 2 * 63 / 64 * 8e-9 + hops * (1e-4 + 1e-3)
    assert predict(measured, 64).seconds == pytest.approx(seconds)


def test_a_shared_batch_is_cut_into_smaller_ones(make_measured, make_profile):
    profiles = {1: [make_profile()], 8: [make_profile(8, rows=8, seconds=0.03)]}
    measured = make_measured(profiles=profiles, network=Link(0.0, 0.0))
    four = predict(measured, 4)
    assert four.rows == 16
    # Between 30 ms for 8 rows and 100 ms for 64; three sums of 2 MB, sent there and
    # back at 1 GB/s.
    compute = 0.03 + 0.07 * 8 / 56
    assert four.seconds == pytest.approx(compute + 0.012)
    # More than one rank for each row cannot pay.
    assert stops_paying(measured) <= 64


def test_slow_steps_of_one_rank_slow_all(make_measured, make_profile):
    uneven = make_profile(2, step_seconds=[0.1] * 9 + [0.2])
    measured = make_measured(profiles={1: [make_profile()], 2: [uneven]})
    assert predict(measured, 2).seconds == pytest.approx(0.110)
    # The slowest of 64 is nearly always the worst that was seen.
    steady = make_measured()
    assert predict(measured, 64).seconds - predict(steady, 64).seconds > 0.09


def test_memory_by_kind(measured, make_measured, make_profile):
    two = predict(measured, 2)
    assert two.memory == {
        "program": 500 * MIB,
        "weights": 8 * MIB,
        "gradients": 8 * MIB,
        "optimizer": 16 * MIB,
        "activations": 100 * MIB,
        # 50 of the engine; 8 stay, and 24 fit where the activations were.
        "buffers": 58 * MIB,
    }
    assert predict(measured, 2, SHARDED).memory["optimizer"] == 8 * MIB
    # One of four equal weights cannot be divided.
    assert predict(measured, 64, SHARDED).memory["optimizer"] == 4 * MIB
    parts = [make_profile(2, divisible=[0, 1, 2, 3])]
    by_rows = make_measured(profiles={1: [make_profile()], 2: parts})
    assert predict(by_rows, 64, SHARDED).memory["optimizer"] == MIB / 4
    assert predict(measured, 2, ACCUMULATED).memory["gradients"] == 16 * MIB


def test_an_optimizer_that_is_sharded_already(make_measured, make_profile):
    sharded = make_profile(64, is_sharded=True, micro_steps=2, divisible=[0, 1, 2, 3])
    measured = make_measured(profiles={1: [make_profile()], 64: [sharded]})
    # Of 16 MiB, 8 MB are accumulated gradients, which stay whole.
    rest = 16 * MIB - 8e6
    for ranks in (2, 8, 64):
        kept = predict(measured, ranks).memory["optimizer"]
        assert kept == pytest.approx(8e6 + rest / ranks)


def test_memory_between_measured_sizes(make_measured, make_profile):
    most = Memory(564 * MIB, 8 * MIB, 16 * MIB, 8 * MIB, 759 * MIB)
    profiles = {1: [make_profile()], 65: [make_profile(65, memory=most)]}
    two = predict(make_measured(profiles=profiles), 2).memory
    # 64 and 63 MiB more on 64 ranks more.
    assert (two["program"], two["activations"]) == (
        501 * MIB,
        100 * MIB + 63 * MIB / 64,
    )


def test_accumulation_sends_less_often(measured):
    update = predict(measured, 2, ACCUMULATED)
    assert update.seconds == pytest.approx(0.410)
    assert update.examples_per_second == pytest.approx(4 * 128 / 0.410)


def test_what_the_script_has_already_is_known(measured, make_measured, make_profile):
    assert not is_compressed(measured)
    messages = [Message("all_reduce", 4 * MIB, 1.0)]
    profiles = {1: [make_profile()], 2: [make_profile(2, messages=messages)]}
    measured = make_measured(profiles=profiles)
    assert is_compressed(measured)
    assert predict(measured, 2, FP16).seconds == predict(measured, 2).seconds


def test_where_adding_ranks_stops_paying(measured):
    assert stops_paying(measured) is None
    thin = replace(measured, network=Link(1e-3, 8e-8), per_host=1)
    # 640 ms of network for each step of 100 ms: 128 examples in 0.73 s.
    assert stops_paying(thin) == 1
    assert stops_paying(replace(measured, network=NETWORK)) > 8


def test_of_one_process_nothing_is_known_about_more(make_measured, make_profile):
    profiles = {1: [make_profile()]}
    alone = make_measured(profiles=profiles, calibrations={}, network=NETWORK)
    assert stops_paying(alone) is None


@pytest.mark.parametrize("kind", ["share", "reduce", "broadcast"])
def test_half_an_all_reduce_sends_half_the_bytes(kind, make_measured, make_profile):
    profile = make_profile(2, messages=[Message(kind, 8e6, 1.0)])
    measured = make_measured(profiles={1: [make_profile()], 2: [profile]})
    assert predict(measured, 2).sent_bytes == 4e6


def test_rows_of_all_ranks_are_gathered(make_measured, make_profile):
    profile = make_profile(2, messages=[Message("all_gather", 1e6, 1.0)])
    measured = make_measured(profiles={1: [make_profile()], 2: [profile]})
    # Each rank sends its own, and passes on those of others.
    assert predict(measured, 8).sent_bytes == pytest.approx(7e6)


def test_ranks_that_share_a_batch_gather_rows_of_their_parts(
    make_measured, make_profile
):
    profile = make_profile(8, rows=8, messages=[Message("all_gather", 1e6, 1.0)])
    measured = make_measured(profiles={1: [make_profile()], 8: [profile]})
    # Of 64 rows, a rank of two has 32, and one of eight 8.
    assert predict(measured, 8).sent_bytes == pytest.approx(7e6)
    assert predict(measured, 2).sent_bytes == pytest.approx(4e6)
