import tensorflow as tf

from tfdist.data.sharding import Shard
from tfdist.strategies import MirroredStrategy, OneDeviceStrategy


def test_a_function_of_a_custom_loop_runs_in_each_replica(two_cpus):
    strategy = MirroredStrategy(two_cpus)

    @tf.function
    def step(value):
        return strategy.run(lambda one: one + 1.0, args=(value,))

    results = strategy.experimental_local_results(step(tf.constant(1.0)))
    assert [float(result) for result in results] == [2.0, 2.0]


def test_steps_of_keras_go_to_the_extended_part(monkeypatch):
    strategy = OneDeviceStrategy("CPU:0")
    monkeypatch.setattr(
        strategy.extended, "step", lambda run, fn, args: ("step", run(fn, (1,)), args)
    )
    shard = Shard((), (), (), ())

    assert strategy.run(lambda one: one + 1, args=(shard,)) == ("step", 2, (shard,))
    assert strategy.run(lambda one: one + 1, args=(1,)) == 2


def test_the_collective_is_that_of_the_processes(two_cpus):
    assert MirroredStrategy(two_cpus).collective.size == 1
