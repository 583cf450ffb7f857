import warnings
from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

from tfdist.compat.keras.compile_checks import (
    caveats,
    check_stateless,
    options_done_wrong,
    synchronized_layers,
)
from tfdist.strategies import (
    AllReduceStrategy,
    CentralStorageStrategy,
    MirroredStrategy,
    OneDeviceStrategy,
)


def model(*layers, loss="mse"):
    made = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
    made.compile("sgd", loss)
    return made


NORMS = [keras.layers.BatchNormalization(name=f"norm{i}") for i in range(5)]
WHOLE = keras.layers.BatchNormalization(synchronized=True)


@pytest.mark.parametrize(
    ("layers", "loss", "named"),
    [
        ([WHOLE, keras.layers.LayerNormalization()], "mse", None),
        ([keras.Sequential(NORMS)], "mse", "rows in norm0, norm1, norm2 and 2 more."),
        *(
            ([], loss, "a ratio over the rows")
            for loss in (
                *("dice", keras.losses.Tversky(), keras.losses.Dice()),
                *(keras.losses.dice, [keras.losses.tversky]),
            )
        ),
        *(
            ([], loss, None)
            for loss in (
                *(keras.losses.Dice(axis=(1,)), keras.losses.Huber()),
                *("mae", "CE", None),
            )
        ),
        *(
            ([], loss, "compares rows with one another")
            for loss in ("circle", keras.losses.Circle())
        ),
    ],
)
def test_what_depends_on_the_rows_of_a_process_is_named(layers, loss, named):
    found = caveats(model(*layers, loss=loss))

    assert len(found) == (named is not None)
    assert named is None or named in found[0]


def test_metrics_that_keep_a_state_of_their_own_are_named():
    class Listed(keras.metrics.Metric):
        def update_state(self, y, p, sample_weight=None):
            pass

        def result(self):
            return 0.0

    trained = model()
    metrics = [Listed(name="listed"), "mae", keras.metrics.F1Score()]
    trained.compile("sgd", "mse", metrics=metrics)
    assert not caveats(trained)
    trained.evaluate(tf.ones((2, 4)), tf.ones((2, 1)), verbose=0)

    (found,) = caveats(trained)
    assert found.startswith("Each rank has other results of the metrics listed, ")


def test_layers_that_need_the_whole_batch_are_named():
    layers = [
        keras.layers.BatchNormalization(),
        keras.layers.BatchNormalization(synchronized=True, name="whole"),
        keras.layers.Dense(1),
    ]
    inner = keras.Sequential([keras.Input((2,)), *layers])
    model = keras.Sequential([keras.Input((2,)), inner])

    assert synchronized_layers(model) == ["whole"]


def unchecked_model():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


def test_what_a_strategy_refuses_is_an_error_of_compile(two_cpus):
    with CentralStorageStrategy(two_cpus).scope():
        made = unchecked_model()
        with pytest.raises(ValueError, match="XLA cannot compile a step whose weights"):
            made.compile("sgd", "mse", jit_compile=True)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"clipnorm": 1.0}, ["clipnorm=1.0"]),
        ({"clipvalue": 0.5}, ["clipvalue=0.5"]),
        ({"global_clipnorm": 2.0}, ["global_clipnorm=2.0"]),
        ({"gradient_accumulation_steps": 4}, ["gradient_accumulation_steps=4"]),
        ({"use_ema": True}, ["use_ema=True"]),
        ({"weight_decay": 0.1}, []),
        ({}, []),
    ],
)
def test_options_are_named_as_they_were_given_also_inside_of_loss_scaling(
    options, named
):
    made, optimizer = unchecked_model(), keras.optimizers.Adam(**options)
    made.compile(optimizer, "mse")
    assert options_done_wrong(made) == named
    made.compile(keras.optimizers.LossScaleOptimizer(optimizer), "mse")
    assert options_done_wrong(made) == ["loss scaling", *named]


def test_an_argument_of_keras_2_is_left_out_with_a_warning(two_cpus, be_one_of_two):
    text = (
        "Keras 3 has no experimental_run_tf_function. Received: "
        "experimental_run_tf_function in compile, as in scripts of Horovod for Keras 2."
    )
    with CentralStorageStrategy(two_cpus).scope():
        made = unchecked_model()
        with pytest.warns(UserWarning, match=text):
            made.compile("sgd", "mse", experimental_run_tf_function=False)
        assert made.compiled
        # Once in a job, on its chief.
        be_one_of_two(1)
        with warnings.catch_warnings(action="error"):
            made.compile("sgd", "mse", experimental_run_tf_function=False)


def test_layers_that_keep_a_state_for_each_row_are_refused():
    lstm = keras.layers.LSTM(2, stateful=True, name="lstm")
    both = keras.layers.Bidirectional(
        keras.layers.GRU(2, stateful=True, return_sequences=True, name="gru")
    )
    check_stateless(keras.Sequential([keras.layers.LSTM(2)]))

    with pytest.raises(
        ValueError,
        match=r"A stateful layer keeps a state for each row of a batch, whose rows are "
        r"split among the ranks\. Received: stateful=True in backward_gru, "
        r"forward_gru, lstm\. Leave it out, or train in one process without a strat",
    ):
        check_stateless(keras.Sequential([keras.Input((3, 1), 4), both, lstm]))


@pytest.fixture
def with_gpu(monkeypatch):
    """Let Keras find a GPU besides the devices of this machine."""
    devices = [*tf.config.list_physical_devices(), SimpleNamespace(device_type="GPU")]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: devices)
    # Strategies of several replicas set it on GPUs.
    monkeypatch.setenv("TF_USE_DETERMINISTIC_SEGMENT_REDUCTIONS", "1")


def under(strategy, **options):
    """Return whether XLA compiles a model under a strategy."""
    with strategy.scope():
        model = unchecked_model()
        model.compile("sgd", "mse", **options)
    return model.jit_compile


@pytest.mark.parametrize("options", [{}, {"jit_compile": "auto"}])
def test_xla_compiles_for_a_gpu_as_without_a_strategy(options, with_gpu):
    model = unchecked_model()
    model.compile("sgd", "mse", **options)

    assert model.jit_compile is True
    assert under(AllReduceStrategy(), **options) is True
    assert under(OneDeviceStrategy("CPU:0"), **options) is True
    assert under(AllReduceStrategy(), jit_compile=False) is False


def test_xla_compiles_nothing_by_default_on_processors():
    assert under(AllReduceStrategy()) is False


def test_without_xla_on_several_gpus_a_warning_says_so(two_cpus, with_gpu):
    with pytest.warns(UserWarning, match="Received: jit_compile='auto' under Mirrored"):
        assert under(MirroredStrategy(two_cpus)) is False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert under(MirroredStrategy(two_cpus), jit_compile=False) is False
