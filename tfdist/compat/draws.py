"""Random operations of TensorFlow that give each row the same numbers.

Rows then get the same numbers however they are cut. The operations are replaced where
TensorFlow calls its generated functions. Deletable when TensorFlow can be told what its
random operations return.
"""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_random_ops as _plain
from tensorflow.python.ops import gen_stateful_random_ops as _stateful
from tensorflow.python.ops import gen_stateless_random_ops as _stateless
from tensorflow.python.ops import gen_stateless_random_ops_v2 as _stateless_v2

from tfdist.compat.patching import holding

_MODULES = (_plain, _stateful, _stateless, _stateless_v2)
# Operations by what they draw.
_UNIFORM = ("random_uniform", "stateless_random_uniform", "stateful_uniform")
_NORMAL = (
    *("random_standard_normal", "stateless_random_normal"),
    "stateful_standard_normal",
)
_TRUNCATED = (
    *("truncated_normal", "stateless_truncated_normal"),
    "stateful_truncated_normal",
)
_INTEGERS = tuple(f"{name}_int" for name in _UNIFORM)
_ALL_INTEGERS = tuple(f"{name}_full_int" for name in _UNIFORM)

_Arguments = dict[str, Any]
_Draw = Callable[[_Arguments], Any]


@contextmanager
def alike_in_all_rows() -> Iterator[None]:
    """Let random operations in a block give all rows the same numbers."""
    draws = _Draws()
    replacements = {
        **dict.fromkeys(_UNIFORM, draws.floats(_stateless.stateless_random_uniform)),
        **dict.fromkeys(_NORMAL, draws.floats(_stateless.stateless_random_normal)),
        **dict.fromkeys(
            _TRUNCATED, draws.floats(_stateless.stateless_truncated_normal)
        ),
        **dict.fromkeys(_INTEGERS, draws.integers()),
        **dict.fromkeys(_ALL_INTEGERS, draws.all_integers()),
        **dict.fromkeys(("random_shuffle", "stateless_shuffle"), _unchanged),
        **dict.fromkeys(("multinomial", "stateless_multinomial"), _most_likely),
        **dict.fromkeys(("random_gamma", "stateless_random_gamma"), _parameter),
        **dict.fromkeys(("random_poisson", "stateless_random_poisson"), _parameter),
        # These change the state of a generator.
        **dict.fromkeys(("rng_read_and_skip", "rng_skip"), _no_state),
    }
    with ExitStack() as stack:
        for module in _MODULES:
            for name, function in [*vars(module).items()]:
                base = name.removesuffix("_v2").removesuffix("_v3")
                if base in replacements:
                    replaced = _by_name(function, replacements[base])
                    stack.enter_context(holding(module, name, replaced))
        yield


class _Draws:
    """Numbers that depend on the last dimension, and on the number of the draw."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def floats(self, make: Callable[..., Any]) -> _Draw:
        """Return a replacement that draws floats."""

        def draw(given: _Arguments) -> Any:
            dtype = given.get("dtype") or tf.float32
            return self._spread(given, lambda row, seed: make(row, seed, dtype=dtype))

        return draw

    def integers(self) -> _Draw:
        """Return a replacement that draws integers from a range."""
        make = _stateless.stateless_random_uniform_int

        def draw(given: _Arguments) -> Any:
            low, high = (tf.convert_to_tensor(given[n]) for n in ("minval", "maxval"))
            return self._spread(given, lambda row, seed: make(row, seed, low, high))

        return draw

    def all_integers(self) -> _Draw:
        """Return a replacement that draws any integers."""
        make = _stateless.stateless_random_uniform_full_int

        def draw(given: _Arguments) -> Any:
            dtype = given.get("dtype") or tf.uint64
            return self._spread(given, lambda row, seed: make(row, seed, dtype=dtype))

        return draw

    def _spread(self, given: _Arguments, make: Callable[[Any, Any], Any]) -> Any:
        """Return numbers of a shape that are equal but along the last dimension."""
        shape = tf.cast(tf.convert_to_tensor(given["shape"]), tf.int32)
        row = tf.concat([tf.ones_like(shape[:-1]), shape[-1:]], 0)
        # A vector has one number for each row.
        row = tf.ones_like(shape) if shape.shape[0] == 1 else row
        # Each simulated rank is a thread.
        here = threading.get_ident()
        self._counts[here] = count = self._counts.get(here, 0) + 1
        return tf.broadcast_to(make(row, tf.constant([20260101, count])), shape)


def _parameter(given: _Arguments) -> Any:
    """Return the parameter of a distribution instead of numbers from it."""
    name = next(name for name in ("alpha", "rate", "lam") if name in given)
    parameter = tf.convert_to_tensor(given[name])
    shape = tf.cast(tf.convert_to_tensor(given["shape"]), tf.int32)
    if "seed2" in given or name == "rate":
        # Older operations draw a shape of numbers for each parameter.
        shape = tf.concat([shape, tf.shape(parameter)], 0)
    return tf.cast(
        tf.broadcast_to(parameter, shape), given.get("dtype") or parameter.dtype
    )


def _most_likely(given: _Arguments) -> Any:
    """Return the most likely class of each row, as often as asked."""
    logits = tf.convert_to_tensor(given["logits"])
    best = tf.argmax(logits, -1, output_type=given.get("output_dtype") or tf.int64)
    return tf.repeat(best[:, tf.newaxis], given["num_samples"], axis=1)


def _unchanged(given: _Arguments) -> Any:
    """Return what was to be shuffled."""
    return tf.identity(given["value"])


def _no_state(given: _Arguments) -> Any:
    """Return a state of a generator."""
    return tf.zeros([3], tf.int64)


def _by_name(function: Callable[..., Any], replacement: _Draw) -> Callable[..., Any]:
    """Return a function that gives a replacement its arguments by name."""
    signature = inspect.signature(function)

    def call(*args: Any, **kwargs: Any) -> Any:
        return replacement(signature.bind(*args, **kwargs).arguments)

    return call
