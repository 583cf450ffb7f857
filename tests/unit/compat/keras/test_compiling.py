import keras
import pytest

from tfdist.strategies import CentralStorageStrategy, OneDeviceStrategy


def model():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


def test_a_strategy_looks_at_what_was_compiled(two_cpus, monkeypatch):
    seen = []
    strategy = CentralStorageStrategy(two_cpus)
    monkeypatch.setattr(strategy, "check_compiled", seen.append)
    with strategy.scope():
        made = model()
        made.compile("sgd", "mse")

    assert seen == [made]


def test_what_a_strategy_refuses_is_an_error_of_compile(two_cpus):
    with CentralStorageStrategy(two_cpus).scope():
        made = model()
        with pytest.raises(ValueError, match="XLA cannot compile a step whose weights"):
            made.compile("sgd", "mse", jit_compile=True)


def test_a_strategy_that_refuses_nothing_is_not_asked():
    with OneDeviceStrategy("CPU:0").scope():
        made = model()
        made.compile("sgd", "mse", jit_compile=True)

    assert made.jit_compile
