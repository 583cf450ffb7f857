"""PrintLearningRate prints below the progress bar, and on the chief alone."""

import keras

from tfdist.callbacks import LearningRateSchedule, PrintLearningRate


def test_each_epoch_has_a_line(fit, capsys):
    callbacks = [PrintLearningRate(), LearningRateSchedule(0.5)]
    fit(*callbacks, epochs=2)
    fit(*callbacks, epochs=1)

    assert capsys.readouterr().out == (
        "epoch 1: learning rate 0.1\n"
        "epoch 2: learning rate 0.05\n"
        "epoch 1: learning rate 0.1\n"
    )


def test_a_schedule_of_keras_is_read_and_left_alone(compiled, fit, capsys):
    decay = keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.5, 0.25])
    model = compiled(keras.optimizers.SGD(decay))
    fit(PrintLearningRate(), epochs=1)

    assert capsys.readouterr().out == "epoch 1: learning rate 0.25\n"
    assert "_get_current_learning_rate" not in vars(model.optimizer)
