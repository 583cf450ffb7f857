import keras
import pytest

from tfdist.compat.keras.caveats import caveats, synchronized_layers


def model(*layers, loss="mse"):
    made = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
    made.compile("sgd", loss)
    return made


def test_a_model_whose_rows_are_apart_has_no_caveat():
    norm = keras.layers.BatchNormalization(synchronized=True)

    assert caveats(model(norm, keras.layers.LayerNormalization())) == []


def test_statistics_of_a_process_are_named_by_their_layers():
    norms = [keras.layers.BatchNormalization(name=f"norm{i}") for i in range(5)]

    (caveat,) = caveats(model(keras.Sequential(norms)))

    assert "rows in norm0, norm1, norm2 and 2 more. Make it" in caveat


def test_a_frozen_normalization_takes_no_statistics():
    norm = keras.layers.BatchNormalization(trainable=False)

    assert caveats(model(norm)) == []


@pytest.mark.parametrize(
    "loss",
    [
        "dice",
        keras.losses.Tversky(),
        keras.losses.Dice(),
        keras.losses.dice,
        [keras.losses.tversky],
    ],
)
def test_a_ratio_over_the_rows_is_named(loss):
    assert "a ratio over the rows" in caveats(model(loss=loss))[0]


@pytest.mark.parametrize(
    "loss", [keras.losses.Dice(axis=(1,)), keras.losses.Huber(), "mae", None]
)
def test_a_mean_over_the_rows_is_not(loss):
    assert caveats(model(loss=loss)) == []


@pytest.mark.parametrize("loss", ["circle", keras.losses.Circle()])
def test_a_loss_of_pairs_is_named(loss):
    assert "compares rows with one another" in caveats(model(loss=loss))[0]


def test_a_model_that_is_not_compiled_has_no_loss():
    assert caveats(keras.Sequential([keras.layers.Dense(1)])) == []


def test_layers_that_need_the_whole_batch_are_named():
    layers = [
        keras.layers.BatchNormalization(),
        keras.layers.BatchNormalization(synchronized=True, name="whole"),
        keras.layers.Dense(1),
    ]
    inner = keras.Sequential([keras.Input((2,)), *layers])
    model = keras.Sequential([keras.Input((2,)), inner])

    assert synchronized_layers(model) == ["whole"]
