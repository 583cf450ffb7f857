import keras

from tfdist.compat.keras.moving_averages import momentum_of


def test_only_batch_normalization_keeps_moving_averages():
    norm = keras.layers.BatchNormalization(momentum=0.75)
    inner = keras.Sequential([keras.layers.Dense(2), norm, keras.layers.Dropout(0.5)])
    model = keras.Sequential([keras.Input((3,)), inner])
    found = {v.path: momentum_of(model, v) for v in model.variables}

    moving = {norm.moving_mean.path, norm.moving_variance.path}
    assert {path for path, kept in found.items() if kept == 0.75} == moving
    assert set(found.values()) == {0.75, None}
    assert len(found) == 7
