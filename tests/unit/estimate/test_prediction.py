"""Predictions from measurements made by hand, by numbers worked out by hand."""

from dataclasses import replace

import pytest

from tfdist.estimate import Link, predict
from tfdist.estimate.prediction import Message

MIB = 2**20


def test_a_single_process_is_as_it_was_measured(measured):
    alone = predict(measured, 1)
    assert alone.seconds == pytest.approx(0.1)
    assert alone.examples_per_second == pytest.approx(640)
    assert alone.efficiency == pytest.approx(1)
    assert alone.sent_bytes == 0
    assert alone.peak_bytes == 600 * MIB


def test_on_a_host_every_message_delays_the_step(measured):
    two = predict(replace(measured, per_host=2), 2)
    # 8 MB at 1 GB/s, and 1 ms for each of two messages whatever its size.
    assert two.seconds == pytest.approx(0.110)
    assert two.efficiency == pytest.approx(1 / 1.1)
    assert two.sent_bytes == 8e6


def test_between_hosts_the_network_decides_while_the_step_computes(measured):
    # The first message begins at 90 ms. Of 2 MB, 16 ms go over the network; of 6 MB, 48
    # more; each of the four hops has 0.1 ms and half of the engine's 1 ms.
    seconds = 0.090 + 0.016 + 0.048 + 4 * (1e-4 + 0.5e-3)
    assert predict(measured, 2).seconds == pytest.approx(seconds)


def test_more_ranks_send_more_messages(measured):
    hops = 2 * 2 * 7
    seconds = 0.090 + 8e6 * 2 * 7 / 8 * 8e-9 + hops * (1e-4 + 0.5e-3)
    assert predict(measured, 8).seconds == pytest.approx(seconds)
    assert predict(measured, 8).sent_bytes == pytest.approx(14e6)


def test_ranks_of_one_host_do_not_use_the_network(measured):
    faster = replace(measured, network=Link(1e-5, 1e-9))
    two, four = (predict(replace(m, per_host=2), 2) for m in (measured, faster))
    assert two == four
    two, four = (predict(replace(m, per_host=2), 4) for m in (measured, faster))
    assert two.seconds > four.seconds


def test_horovod_sends_together_what_waits(make_measured, make_profile):
    measured = make_measured(engine="horovod")
    # The second waits for nothing else: two messages.
    assert predict(measured, 2).seconds == pytest.approx(0.090 + 0.064 + 4 * 0.6e-3)
    messages = [Message("all_reduce", 2e6, 1.0), Message("all_reduce", 6e6, 1.0)]
    together = replace(measured, largest=make_profile(2, messages=messages))
    assert predict(together, 2).seconds == pytest.approx(0.1 + 0.064 + 2 * 0.6e-3)


def test_mpi_chooses_few_messages(make_measured):
    # Of 64 ranks, there and back, for two messages; two ranks need one exchange.
    hops = 2 * 2 * 6
    seconds = 0.090 + 8e6 * 2 * 63 / 64 * 8e-9 + hops * (1e-4 + 1e-3)
    assert predict(make_measured(engine="mpi"), 64).seconds == pytest.approx(seconds)


def test_a_shared_batch_is_cut_into_smaller_ones(make_measured, make_profile):
    eight = make_profile(8, rows=8, seconds=0.03, peak_bytes=500 * MIB, messages=[])
    measured = make_measured(largest=eight)
    four = predict(measured, 4)
    assert four.rows == 16
    # Between 8 rows and 64.
    assert four.seconds == pytest.approx(0.03 + 0.07 * 8 / 56)
    assert four.peak_bytes == pytest.approx((500 + 100 * 8 / 56 + 8) * MIB)
    rows = Message("all_gather", 1e6, 1.0)
    looked_up = replace(measured, largest=replace(eight, messages=[rows]))
    # Rows of 16 examples from each of four ranks, of which three are sent on.
    assert predict(looked_up, 4).sent_bytes == pytest.approx(3 * 2e6)


def test_the_memory_of_data_that_each_rank_makes_for_all(make_measured, make_profile):
    measured = make_measured(largest=make_profile(9, peak_bytes=680 * MIB))
    assert predict(measured, 5).peak_bytes == (640 + 8) * MIB


def test_updates_of_several_batches(make_measured, make_profile):
    profiles = [make_profile(ranks, micro_steps=4) for ranks in (1, 2)]
    measured = make_measured(alone=profiles[0], largest=profiles[1], per_host=2)
    assert predict(measured, 1).seconds == pytest.approx(0.4)
    assert predict(measured, 2).seconds == pytest.approx(0.410)


def test_slow_steps_of_one_rank_slow_all(make_measured, make_profile):
    uneven = make_profile(2, step_seconds=[0.1] * 9 + [0.2])
    measured, steady = make_measured(largest=uneven), make_measured()
    # The slowest of 64 is nearly always the worst that was seen.
    assert predict(measured, 64).seconds - predict(steady, 64).seconds > 0.08
