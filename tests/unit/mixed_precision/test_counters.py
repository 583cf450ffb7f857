import keras

from tfdist.mixed_precision.counters import Counters


def test_both_start_from_zero():
    counters = Counters()

    assert [int(v.numpy()) for v in counters.variables] == [0, 0]
    assert {v.name for v in counters.variables} == {"overflow_counter", "skipped_steps"}


def test_a_number_of_steps_does_not_become_a_float():
    assert {v.dtype for v in Counters().variables} == {"int32"}


def test_what_is_saved_is_loaded():
    first, second, store = Counters(), Counters(), {}
    first.overflow_counter.assign(2)
    first.skipped_steps.assign(7)

    first.save_own_variables(store)
    second.load_own_variables(store)

    assert int(second.overflow_counter.numpy()) == 2
    assert int(second.skipped_steps.numpy()) == 7


def test_a_file_without_counters_leaves_them():
    counters = Counters()
    counters.skipped_steps.assign(7)

    counters.load_own_variables({})

    assert int(counters.skipped_steps.numpy()) == 7


def test_keras_saves_layers_wherever_they_hang():
    assert issubclass(Counters, keras.layers.Layer)
