import pytest

from tfdist.cluster.late_tf_config import LateTFConfig

CONFIG = '{"cluster": {"worker": ["a:1", "b:1"]}}'


@pytest.mark.parametrize("before", [{}, {"TF_CONFIG": CONFIG}])
def test_what_has_not_changed_is_not_late(before):
    late = LateTFConfig(before)

    assert late.warning() == ""


@pytest.mark.parametrize("before", [{}, {"TF_CONFIG": "{}"}])
def test_what_was_set_later_is_said_once(before):
    env = dict(before)
    late = LateTFConfig(env)
    env["TF_CONFIG"] = CONFIG

    assert late.warning() == (
        "TF_CONFIG was set after the strategy was made, which has not read it. "
        f"Received: TF_CONFIG={CONFIG}. Set it before the program makes a strategy, "
        "best before it starts."
    )
    assert late.warning() == ""


def test_taking_it_away_changes_nothing():
    env = {"TF_CONFIG": CONFIG}
    late = LateTFConfig(env)
    del env["TF_CONFIG"]

    assert late.warning() == ""
