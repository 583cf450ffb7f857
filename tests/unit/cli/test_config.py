"""`tfdist config` as a whole."""

import pytest

from tfdist_cli.main import main


def test_help_lists_the_actions(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["config", "--help"])

    text = capsys.readouterr().out
    actions = ("check", "show", "build")
    assert all(f"    {action} " in text for action in actions)


def test_an_action_is_needed(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["config"])

    assert "tfdist config: error: the following arguments are required: ACTION" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("action", ["check", "show", "build"])
def test_an_unknown_option(action, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["config", action, "--jsno"])

    error = capsys.readouterr().err
    assert error.startswith(f"tfdist config {action}: error: there is no option --jsno")
