"""Lines of epochs come below the progress bar, from the chief."""

from types import SimpleNamespace

import pytest

from tfdist.callbacks.epoch_line import EpochLine


class Counting(EpochLine):
    def on_epoch_end(self, epoch, logs=None):
        self._say(f"line {epoch}")


def test_each_line_comes_after_the_bar_of_its_epoch(fit, capsys):
    callback = Counting()
    fit(callback, epochs=2, verbose=2)
    lines = capsys.readouterr().out.splitlines()
    first, second = lines.index("line 0"), lines.index("line 1")

    assert "loss:" in lines[first - 1]
    assert lines[first + 1] == "Epoch 2/2"
    assert "loss:" in lines[second - 1]
    assert len(lines) == second + 1


def test_a_fit_that_was_interrupted_leaves_no_line(capsys):
    strategy = SimpleNamespace(collective=SimpleNamespace(rank=0))
    callback = EpochLine()
    callback.set_model(SimpleNamespace(distribute_strategy=strategy))
    callback._say("of an earlier fit")
    callback.on_train_begin()
    callback.on_epoch_begin(0)

    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("rank", "printed"), [(0, "here\n"), (1, "")])
def test_only_the_chief_prints(capsys, rank, printed):
    collective = SimpleNamespace(rank=rank)
    strategy = SimpleNamespace(collective=collective)
    callback = EpochLine()
    callback.set_model(SimpleNamespace(distribute_strategy=strategy))
    callback._say("here")
    callback.on_train_end()
    callback.on_train_end()

    assert capsys.readouterr().out == printed
