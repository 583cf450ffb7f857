"""Errors of a chief, some of which name a lost server."""

import pytest
import tensorflow as tf

PS_1 = "/job:ps/replica:0/task:1"


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (tf.errors.UnavailableError(None, None, PS_1), r"ps 1 \(e:22\)"),
        (tf.errors.AbortedError(None, None, "cannot reach d:1"), r"ps 0 \(d:1\)"),
    ],
)
def test_a_lost_server_is_named(job, error, name):
    calls = []
    with (
        pytest.raises(
            ConnectionError,
            match=rf"^{name} is lost, and the variables that it held\. Received: "
            rf"{type(error).__name__} from TensorFlow\. Start the job again; "
            r"keras\.callbacks\.BackupAndRestore continues",
        ) as raised,
        job.naming_lost_servers(lambda: calls.append("abandoned")),
    ):
        raise error

    assert raised.value.__cause__ is error
    assert calls == ["abandoned"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (tf.errors.UnavailableError(None, None, "/job:worker/task:0"), ["abandoned"]),
        (tf.errors.InvalidArgumentError(None, None, PS_1), ["abandoned"]),
        (ValueError(PS_1), ["abandoned"]),
        (KeyboardInterrupt(), ["abandoned"]),
        (StopIteration(), []),
    ],
)
def test_other_errors_stay_what_they_are(job, error, expected):
    calls = []
    with (
        pytest.raises(type(error)) as raised,
        job.naming_lost_servers(lambda: calls.append("abandoned")),
    ):
        raise error

    assert raised.value is error
    assert calls == expected
