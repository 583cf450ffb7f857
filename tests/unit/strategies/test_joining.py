import tensorflow as tf

from tfdist.collectives import SingleCollective
from tfdist.strategies.joining import of_devices
from tfdist.strategies.mirrored import MirroredReplicasExtended
from tfdist.strategies.process_replica import ProcessReplicaExtended


def test_one_device_has_plain_variables(two_cpus):
    strategy = tf.distribute.get_strategy()
    extended = of_devices(strategy, SingleCollective(), two_cpus[1:])

    assert isinstance(extended, ProcessReplicaExtended)
    assert extended.worker_devices == (two_cpus[1],)


def test_several_have_copies(two_cpus):
    class Strategy(tf.distribute.Strategy):
        _collective_key_base = 5000

        def __init__(self):
            super().__init__(of_devices(self, SingleCollective(), two_cpus))

    extended = Strategy().extended
    assert isinstance(extended, MirroredReplicasExtended)
    assert list(extended.worker_devices) == two_cpus
