import pytest
import tensorflow as tf

from tfdist.cluster import Cluster
from tfdist.strategies.parameter_server.losses import lost_server, naming_lost_servers

CLUSTER = Cluster(chief="a:1", workers=("b:1",), ps=("c:1", "d:22"))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            tf.errors.UnavailableError(None, None, "/job:ps/replica:0/task:1"),
            "ps 1 (d:22)",
        ),
        (tf.errors.AbortedError(None, None, "cannot reach c:1"), "ps 0 (c:1)"),
        (tf.errors.UnavailableError(None, None, "/job:worker/replica:0/task:0"), None),
        (tf.errors.InvalidArgumentError(None, None, "/job:ps/replica:0/task:1"), None),
        (ValueError("/job:ps/replica:0/task:1"), None),
    ],
)
def test_the_loss_of_a_server_is_told_from_other_errors(error, expected):
    assert lost_server(error, CLUSTER) == expected


def test_a_lost_server_is_named():
    calls = []
    error = tf.errors.UnavailableError(None, None, "/job:ps/replica:0/task:1")
    with (
        pytest.raises(
            ConnectionError,
            match=r"ps 1 \(d:22\) is lost, and the variables that it held\. Received: "
            r"UnavailableError from TensorFlow\. Start the job again; "
            r"keras\.callbacks\.BackupAndRestore goes on",
        ) as raised,
        naming_lost_servers(CLUSTER, lambda: calls.append("abandoned")),
    ):
        raise error

    assert raised.value.__cause__ is error
    assert calls == ["abandoned"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyError, ["abandoned"]),
        (KeyboardInterrupt, ["abandoned"]),
        (StopIteration, []),
    ],
)
def test_other_errors_stay_what_they_are(error, expected):
    calls = []
    with (
        pytest.raises(error),
        naming_lost_servers(CLUSTER, lambda: calls.append("abandoned")),
    ):
        raise error

    assert calls == expected
