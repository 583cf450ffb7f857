"""Random operations of tf.data pipelines that draw alike on all ranks.

Deletable when tf.data has a seed of its own, unlike that of `tf.random`, which would
make ranks draw the same numbers in their steps, and each epoch those of the last.
"""

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache, partial, wraps
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import random_op as _random_op
from tensorflow.python.data.util import random_seed as _data_seed
from tensorflow.python.framework import random_seed as _random_seed
from tensorflow.python.ops import gen_random_ops as _plain
from tensorflow.python.ops import gen_stateful_random_ops as _stateful
from tensorflow.python.ops.parallel_for import control_flow_ops as _vectorized

from tfdist.cluster.detect import detect_membership
from tfdist.compat.mirrored import is_in_loop
from tfdist.compat.patching import holding, within, wrap
from tfdist.compat.tensorflow import global_seed
from tfdist.data.sharding import is_rank_part


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
    """The function of a dataset that is being traced, and its random draws."""

    def __init__(self) -> None:
        # Whether it draws without a seed, and whether from a state, in some order.
        self.is_unseeded = self.is_ordered = False
        self._seed: Any = None
        self._count = 0
        # The iteration of vectorized loops.
        self._iteration: Any = 0

    @property
    def has_seed(self) -> bool:
        """Return whether this trace is the one with a seed for each element."""
        return self._seed is not None

    def seed(self, *, is_seeded: bool) -> Any:
        """Return the seed of a draw; None to draw as without tfdist."""
        # With a seed of the element, all iterations of a loop would draw the same.
        if is_seeded or is_in_loop():
            self.is_ordered = True
            return None
        self.is_unseeded = True
        self._count += 1
        if not self.has_seed:
            return None
        return tf.stack([self._seed, self._count + _MOST_DRAWS * self._iteration])

    def with_seed(self, function: Callable[..., Any]) -> Any:
        """Return a function of an element and a seed for its draws."""
        autograph = tf.__internal__.autograph
        call = autograph.tf_convert(function, autograph.control_status_ctx())

        @tf.autograph.experimental.do_not_convert
        def of_element(element: Any, seed: Any) -> Any:
            self._seed, self._count = seed, 0
            return call(*element) if type(element) is tuple else call(element)

        return of_element

    def vectorized(self, body: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the body of a vectorized loop whose iterations draw apart."""

        # With the module of the original, autograph does not convert it.
        @wraps(body)
        def iterate(number: Any) -> Any:
            # Loops may be nested.
            inner = _MOST_ROWS * self._iteration + tf.cast(number, tf.int64) + 1
            with holding(self, "_iteration", inner):
                return body(number)

        return iterate


# No function has more draws, and no loop in a loop more iterations.
_MOST_DRAWS = _MOST_ROWS = 2**16
_FUNCTION: ContextVar[_Function | None] = ContextVar("function", default=None)
# The golden ratio of 32 bits spreads neighbouring numbers over the whole range (Knuth,
# The Art of Computer Programming, volume 3, section 6.4).
SPREAD = 0x9E3779B1
# The rank whose part of the data the function that is being traced gets.
_PART: ContextVar[int] = ContextVar("part", default=0)


def seed_in_map(*, is_seeded: bool) -> Any:
    """Return the seed of a draw in a `map`; None to draw as without tfdist."""
    function = _FUNCTION.get()
    return None if function is None else function.seed(is_seeded=is_seeded)


def is_function_watched() -> bool:
    """Return whether a function is traced whose draws are to be alike on all ranks."""
    return _FUNCTION.get() is not None


def seed_of(number: Any, seed: Any) -> Any:
    """Return the seed of a rank, step or part; that of number 0 is the given one."""
    spread = tf.cast(number * SPREAD % 2**32, seed.dtype)
    return tf.bitwise.bitwise_xor(seed, tf.stack([spread, tf.zeros_like(spread)]))


def rank_of_part() -> int:
    """Return the rank whose part of a dataset is mapped; 0 for the whole data."""
    return _PART.get()


def map_alike(
    original: Any,
    dataset: tf.data.Dataset,
    map_func: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> tf.data.Dataset:
    """Map a dataset with the same random draws on all ranks, unless it is of one."""
    draws, outer = _AGREED.draws, _FUNCTION.get()
    # In a graph, the function of another dataset makes it.
    is_eager = tf.executing_eagerly()
    is_agreed = draws is not None and _is_global(dataset) if is_eager else outer
    if not is_agreed:
        part = _PART.get()
        if is_eager:
            part = detect_membership().rank if is_rank_part(dataset) else 0
        with within(_FUNCTION, None), within(_PART, part):
            return original(dataset, map_func, *args, **kwargs)
    function = _Function()
    with within(_FUNCTION, function):
        mapped = original(dataset, map_func, *args, **kwargs)
    if not (function.is_unseeded or function.is_ordered):
        return mapped
    how = inspect.signature(original).bind(dataset, map_func, *args, **kwargs).arguments
    if function.is_unseeded:
        seeds = tf.data.Dataset.random(rerandomize_each_iteration=True)
        how["self"] = tf.data.Dataset.zip(dataset, seeds)
        how["map_func"] = function.with_seed(map_func)
    if function.is_ordered:
        # Parallel calls would draw from the state in any order.
        how.pop("num_parallel_calls", None)
        how.pop("deterministic", None)
        if outer is not None:
            outer.is_ordered = True
    with within(_FUNCTION, function):
        return original(**how)


def _is_global(dataset: tf.data.Dataset) -> bool:
    """Return whether a dataset holds global batches, by its policy, not one rank's."""
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return policy in (None, tf.data.experimental.AutoShardPolicy.AUTO)


@contextmanager
def seeding(seed: int) -> Iterator[None]:
    """Give operations of the current graph without a seed one; others keep theirs.

    A seed of the graph alone would change what an operation draws from its own.
    """
    graph = tf.compat.v1.get_default_graph()
    if graph.seed is not None:
        yield
        return
    original, graph.seed = _random_seed.get_seed, seed

    def get_seed(op_seed: int | None) -> Any:
        current = tf.compat.v1.get_default_graph()
        if op_seed is None or current.seed != seed:
            return original(op_seed)
        current.seed = None
        try:
            return original(op_seed)
        finally:
            current.seed = seed

    with holding(_random_seed, "get_seed", get_seed):
        yield


def has_seeds(dataset: tf.data.Dataset) -> bool:
    """Return whether a dataset reads random numbers, as after `map_alike`."""
    is_source = isinstance(dataset, _random_op._RandomDataset)
    return is_source or any(has_seeds(one) for one in dataset._inputs())


@cache
def _patch() -> None:
    """Let shuffles and random operations ask for an agreed seed."""
    wrap(_data_seed, "get_seed", _seed_of_dataset)
    for name, make in _MAKERS.items():
        wrap(_plain, name, partial(_draw, make))
    for name in ("rng_read_and_skip", "rng_skip"):
        wrap(_stateful, name, _draw_from_state)
    wrap(_vectorized, "pfor", _vectorize)


def _seed_of_dataset(original: Any, seed: int | None) -> Any:
    """Return the seeds of a dataset."""
    if seed is not None or global_seed() is not None:
        return original(seed)
    if tf.executing_eagerly():
        draws = _AGREED.draws
        return original(None if draws is None else draws.getrandbits(31))
    # In the function of another dataset, a number would be that of all its elements.
    seeds = seed_in_map(is_seeded=False)
    return original(None) if seeds is None else tuple(tf.unstack(seeds))


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


def _vectorize(original: Any, body: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a vectorized loop."""
    function = _FUNCTION.get()
    if function is None:
        return original(body, *args, **kwargs)
    if function.has_seed:
        # The first trace has warned of what TensorFlow cannot vectorize.
        kwargs["warn"] = False
    return original(function.vectorized(body), *args, **kwargs)


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


def _gamma(given: dict[str, Any], seed: Any) -> Any:
    """Draw from gamma distributions, a shape of numbers from each."""
    alpha = tf.convert_to_tensor(given["alpha"])
    shape = tf.concat([given["shape"], tf.shape(alpha)], 0)
    return tf.random.stateless_gamma(shape, seed, alpha, dtype=alpha.dtype)


def _poisson(given: dict[str, Any], seed: Any) -> Any:
    """Draw from Poisson distributions, a shape of numbers from each."""
    shape = tf.concat([given["shape"], tf.shape(given["rate"])], 0)
    return tf.random.stateless_poisson(shape, seed, given["rate"], given["dtype"])


# By TensorFlow's generated operation; the others draw apart without a seed.
_MAKERS: dict[str, Callable[[dict[str, Any], Any], Any]] = {
    "multinomial": _classes,
    "random_gamma": _gamma,
    "random_poisson_v2": _poisson,
    "random_shuffle": lambda given, seed: tf.random.experimental.stateless_shuffle(
        given["value"], seed
    ),
    "random_standard_normal": _of_shape(tf.random.stateless_normal),
    "random_uniform": _of_shape(tf.random.stateless_uniform),
    "random_uniform_int": _integers,
    "truncated_normal": _of_shape(tf.random.stateless_truncated_normal),
}
