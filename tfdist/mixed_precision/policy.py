"""Which type a model computes in."""

import difflib

import keras

from tfdist.compat.keras import install

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


def set_policy(name: str) -> keras.DTypePolicy:
    """Set the types in which the layers made from now on compute.

    The weights stay in float32 with each of them. "mixed_float16" computes in float16
    and needs loss scaling, which `compile` adds by itself; "mixed_bfloat16" has the
    range of float32 and needs none; "float32" ends mixed precision. Call it before
    the model is made.

    Args:
        name: "mixed_float16", "mixed_bfloat16" or "float32".

    Returns:
        The policy, which Keras now uses for new layers.

    Raises:
        ValueError: If there is no policy of that name.

    Example:
        >>> set_policy("mixed_bfloat16").compute_dtype
        'bfloat16'
        >>> set_policy("float32").compute_dtype
        'float32'
    """
    if name not in POLICIES:
        nearest = difflib.get_close_matches(str(name), POLICIES, n=1)
        advice = f"Did you mean {nearest[0]!r}? " if nearest else ""
        raise ValueError(
            f"name must be a policy of mixed precision. Received: name={name!r}. "
            f"{advice}Use one of: {', '.join(POLICIES)}; for others call "
            "keras.config.set_dtype_policy."
        )
    install(is_alone=True)
    keras.config.set_dtype_policy(name)
    return keras.config.dtype_policy()
