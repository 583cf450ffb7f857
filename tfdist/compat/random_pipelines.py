"""Random operations of tf.data pipelines that draw alike on all ranks.

Deletable when tf.data has a seed of its own, unlike that of `tf.random`, which would
make ranks draw the same numbers in their steps, and each epoch those of the last.
"""

import inspect
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import random_op as _random_op
from tensorflow.python.data.util import random_seed as _data_seed
from tensorflow.python.ops import gen_random_ops as _plain
from tensorflow.python.ops import gen_stateful_random_ops as _stateful

from tfdist.compat.mirrored import is_in_loop
from tfdist.compat.patching import holding, within, wrap
from tfdist.compat.tensorflow import global_seed


class _Agreed:
    """The source of the seeds of pipelines, equal on all ranks; None without."""

    draws: random.Random | None = None


_AGREED = _Agreed()


def draw_alike(seed: int) -> None:
    """Derive the seeds of shuffles and `map`s without a seed from this one."""
    _AGREED.draws = random.Random(seed)
    _patch()


def drawing_apart() -> AbstractContextManager[None]:
    """Let pipelines made in a block without a seed draw as by TensorFlow."""
    return holding(_AGREED, "draws", None)


class _Function:
    """The function of a `map` that is being traced, and its random draws."""

    def __init__(self) -> None:
        # Whether it draws without a seed, and whether from a state, in some order.
        self.is_unseeded = self.is_ordered = False
        self._seed: Any = None
        self._count = 0

    def seed(self, *, is_seeded: bool) -> Any:
        """Return the seed of a draw; None to draw as without tfdist."""
        # With a seed of the element, all iterations of a loop would draw the same.
        if is_seeded or is_in_loop():
            self.is_ordered = True
            return None
        self.is_unseeded = True
        self._count += 1
        return None if self._seed is None else tf.stack([self._seed, self._count])

    def with_seed(self, function: Callable[..., Any]) -> Any:
        """Return a function of an element and a seed for its draws."""
        autograph = tf.__internal__.autograph
        call = autograph.tf_convert(function, autograph.control_status_ctx())

        @tf.autograph.experimental.do_not_convert
        def of_element(element: Any, seed: Any) -> Any:
            self._seed, self._count = seed, 0
            return call(*element) if type(element) is tuple else call(element)

        return of_element


_FUNCTION: ContextVar[_Function | None] = ContextVar("function", default=None)


def seed_in_map(*, is_seeded: bool) -> Any:
    """Return the seed of a draw in a `map`; None to draw as without tfdist."""
    function = _FUNCTION.get()
    return None if function is None else function.seed(is_seeded=is_seeded)


def map_alike(
    original: Any,
    dataset: tf.data.Dataset,
    map_func: Callable[..., Any],
    num_parallel_calls: Any = None,
    deterministic: bool | None = None,
    **options: Any,
) -> tf.data.Dataset:
    """Map a dataset with the same random draws on all ranks, unless it is of one."""
    how = {"num_parallel_calls": num_parallel_calls, "deterministic": deterministic}
    how |= options
    draws = _AGREED.draws
    if draws is None or not tf.executing_eagerly() or not _is_global(dataset):
        with within(_FUNCTION, None):
            return original(dataset, map_func, **how)
    function = _Function()
    with within(_FUNCTION, function):
        mapped = original(dataset, map_func, **how)
        if function.is_unseeded:
            seed = draws.getrandbits(31)
            seeds = tf.data.Dataset.random(seed, rerandomize_each_iteration=True)
            dataset = tf.data.Dataset.zip(dataset, seeds)
            map_func = function.with_seed(map_func)
        if function.is_ordered:
            # Parallel calls would draw from the state in any order.
            how |= {"num_parallel_calls": None, "deterministic": None}
        is_same = not (function.is_unseeded or function.is_ordered)
        return mapped if is_same else original(dataset, map_func, **how)


def _is_global(dataset: tf.data.Dataset) -> bool:
    """Return whether a dataset holds global batches, by its policy, not one rank's."""
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return policy in (None, tf.data.experimental.AutoShardPolicy.AUTO)


def has_seeds(dataset: tf.data.Dataset) -> bool:
    """Return whether a dataset reads random numbers, as after `map_alike`."""
    is_source = isinstance(dataset, _random_op._RandomDataset)
    return is_source or any(has_seeds(one) for one in dataset._inputs())


@cache
def _patch() -> None:
    """Let shuffles, and random operations in a `map`, ask for an agreed seed."""
    wrap(_data_seed, "get_seed", _seed_of_dataset)
    for name, make in _MAKERS.items():
        wrap(_plain, name, partial(_draw, make))
    for name in ("rng_read_and_skip", "rng_skip"):
        wrap(_stateful, name, _draw_from_state)


def _seed_of_dataset(original: Any, seed: int | None) -> Any:
    """Return the seeds of a dataset."""
    is_seeded = seed is not None or global_seed() is not None
    if _AGREED.draws is None or is_seeded:
        return original(seed)
    return original(_AGREED.draws.getrandbits(31))


def _draw(make: Callable[..., Any], original: Any, *args: Any, **kwargs: Any) -> Any:
    """Draw by a random operation, or in its place from an agreed seed."""
    if _FUNCTION.get() is None:
        return original(*args, **kwargs)
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    is_seeded = bool(given.get("seed") or given.get("seed2"))
    seed = seed_in_map(is_seeded=is_seeded)
    return original(*args, **kwargs) if seed is None else make(given, seed)


def _draw_from_state(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Draw from the state of a `tf.random.Generator`."""
    seed_in_map(is_seeded=True)
    return original(*args, **kwargs)


def _of_shape(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Return a draw of a shape of floats."""
    return lambda given, seed: draw(given["shape"], seed, dtype=given["dtype"])


def _integers(given: dict[str, Any], seed: Any) -> Any:
    """Draw integers from a range."""
    low, high = given["minval"], given["maxval"]
    return tf.random.stateless_uniform(
        given["shape"], seed, low, high, tf.convert_to_tensor(low).dtype
    )


def _classes(given: dict[str, Any], seed: Any) -> Any:
    """Draw classes by their logits."""
    return tf.random.stateless_categorical(
        given["logits"], given["num_samples"], seed, given["output_dtype"]
    )


# By TensorFlow's generated operation; the others draw apart without a seed.
_MAKERS: dict[str, Callable[[dict[str, Any], Any], Any]] = {
    "multinomial": _classes,
    "random_shuffle": lambda given, seed: tf.random.experimental.stateless_shuffle(
        given["value"], seed
    ),
    "random_standard_normal": _of_shape(tf.random.stateless_normal),
    "random_uniform": _of_shape(tf.random.stateless_uniform),
    "random_uniform_int": _integers,
    "truncated_normal": _of_shape(tf.random.stateless_truncated_normal),
}
