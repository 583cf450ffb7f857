import keras
import pytest

from tfdist.mixed_precision import set_policy
from tfdist.mixed_precision.policy import POLICIES


@pytest.fixture(autouse=True)
def policy_as_before():
    before = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(before)


@pytest.mark.parametrize(
    ("name", "compute_dtype"),
    [("mixed_float16", "float16"), ("mixed_bfloat16", "bfloat16"), ("float32",) * 2],
)
def test_new_layers_compute_in_that_type_and_keep_float32_weights(name, compute_dtype):
    policy = set_policy(name)
    layer = keras.layers.Dense(1)
    layer.build((None, 1))

    assert policy == keras.config.dtype_policy()
    assert (layer.dtype_policy.name, layer.compute_dtype) == (name, compute_dtype)
    assert layer.kernel.dtype == "float32"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mixed_float_16", r"Received: name='mixed_float_16'. Did you mean 'mixed_fl"),
        ("fp8", r"Use one of: float32, mixed_bfloat16, mixed_float16; for others"),
        (None, r"must be a policy of mixed precision. Received: name=None"),
    ],
)
def test_others_are_refused_and_change_nothing(name, message):
    before = keras.config.dtype_policy()

    with pytest.raises(ValueError, match=message):
        set_policy(name)

    assert keras.config.dtype_policy() == before


def test_the_names_are_keras_own():
    assert [keras.DTypePolicy(name).name for name in POLICIES] == [*POLICIES]
