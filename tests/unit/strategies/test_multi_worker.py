"""The strategy of one process, and what it refuses; several are in the matrix."""

import pytest
import tensorflow as tf

from tfdist.collectives.single import SingleCollective
from tfdist.strategies import MultiWorkerMirroredStrategy, builtin
from tfdist.strategies.builtin import _check_equal_devices

Options = tf.distribute.experimental.CommunicationOptions


class Resolver(tf.distribute.cluster_resolver.SimpleClusterResolver):
    def __init__(self, jobs, type="worker", index=0):
        super().__init__(tf.train.ClusterSpec(jobs), task_type=type, task_id=index)


@pytest.fixture
def made(monkeypatch):
    """Note the collective that would be made for several processes."""
    noted = []

    def make(cluster, **options):
        noted.append((cluster.addresses, cluster.rank, options))
        return SingleCollective()

    monkeypatch.setattr(builtin, "TensorFlowCollective", make)
    return noted


def test_one_process_takes_all_devices(two_cpus):
    strategy = MultiWorkerMirroredStrategy()

    assert isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    assert list(strategy.extended.worker_devices) == two_cpus
    assert strategy.num_replicas_in_sync == 2
    assert not strategy.cluster_resolver.cluster_spec().as_dict()


def test_a_resolver_tells_who_takes_part(made):
    resolver = Resolver({"worker": ["a:1", "b:2"]}, index=1)
    options = Options(implementation="RING", timeout_seconds=7.0)

    strategy = MultiWorkerMirroredStrategy(resolver, options)

    wanted = {"communication": "ring", "takes_all_gpus": True, "timeout_seconds": 7.0}
    assert made == [(("a:1", "b:2"), 1, wanted)]
    assert strategy.cluster_resolver is resolver


@pytest.mark.parametrize("jobs", [{}, {"worker": ["a:1"]}])
def test_a_resolver_of_one_process_connects_to_no_other(jobs, made):
    MultiWorkerMirroredStrategy(Resolver(jobs))

    assert made == []


def test_packs_are_buckets(made):
    strategy = MultiWorkerMirroredStrategy(
        communication_options=Options(bytes_per_pack=4096)
    )
    hooks = strategy.extended.keras_hooks

    assert [hook._reducer._bucket_bytes for hook in hooks.replicas] == [4096, 4096]


def test_nccl_without_a_gpu_is_refused():
    with pytest.raises(
        ValueError,
        match=r"communication_options wants NCCL, which needs GPUs\. Received: "
        r"implementation=NCCL in a process without a GPU\. Leave the implementation",
    ):
        MultiWorkerMirroredStrategy(
            communication_options=Options(implementation="NCCL")
        )


def test_processes_with_other_numbers_of_devices_are_refused(on_ranks):
    def check(collective):
        with pytest.raises(
            RuntimeError,
            match=r"Every process must have as many devices as the others\. Received: "
            r"\[1, 2\] by rank\. Hide some with tf\.config\.set_visible_devices",
        ):
            _check_equal_devices(["CPU"] * (collective.rank + 1), collective)
        return True

    assert on_ranks(2, check) == [True, True]
