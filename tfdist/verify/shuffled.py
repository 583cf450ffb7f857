"""Training steps with their rows in another order, which changes rounding alone."""

from typing import Any

import tensorflow as tf

from tfdist.compat.patching import wrap
from tfdist.compat.watching import unseen
from tfdist.data.sharding import Shard, count_rows, has_rows, shuffle_rows
from tfdist.strategies import AllReduceStrategy


def shuffle_steps(number: int) -> None:
    """Let the strategy of this process run steps with their rows in another order."""

    # No `do_not_convert` here: autograph must convert `fn`.
    def run(
        original: Any, self: Any, fn: Any, args: Any = (), *further: Any, **options: Any
    ) -> Any:
        return original(self, fn, _shuffled(args, number), *further, **options)

    wrap(AllReduceStrategy, "run", run)


@unseen
def _shuffled(args: Any, number: int) -> Any:
    """Return the arguments of a step with their rows in another order."""
    if args and isinstance(args[0], Shard):
        shard, *rest = args
        with_rows = shard.with_rows
        if isinstance(with_rows, tuple):
            with_rows = count_rows(shard.data)[1]
        else:
            with_rows = tf.unstack(with_rows)
        data = shuffle_rows(shard.data, shard.own, with_rows, number)
        return (shard._replace(data=data), *rest)
    if not any(map(has_rows, tf.nest.flatten(args))):
        return args
    return shuffle_rows(args, *count_rows(args), number)
