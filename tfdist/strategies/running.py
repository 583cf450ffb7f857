"""How a function is run in the replicas: steps of Keras, and custom loops."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives import Collective
from tfdist.data.sharding import Shard


class StepRunner(tf.distribute.Strategy):  # type: ignore[misc]
    """What strategies inherit whose extended part knows the steps of Keras."""

    @property
    def collective(self) -> Collective:
        """What moves tensors and values between the processes."""
        collective: Collective = self.extended.collective
        return collective

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Call a function in each replica; see `tf.distribute.Strategy.run`.

        Args:
            fn: The function.
            args: Its arguments. Default none.
            kwargs: Its keyword arguments. Default none.
            options: A `tf.distribute.RunOptions`. Default None.

        Returns:
            What the function returns here.
        """
        run = super().run
        hooks = self.extended.keras_hooks
        if hooks.is_called or any(isinstance(arg, Shard) for arg in args):
            return self.extended.step(
                lambda fn, args: run(fn, args, kwargs, options), fn, args
            )
        self.extended.start_equal()
        return run(fn, args, kwargs, options)
