"""A program without a strategy of its own: `python -m tfdist.default_strategy`.

`tfdist run --strategy` and `tfdist verify --strategy` run scripts so. The strategy is
made when TensorFlow first needs its devices. Until then the script may configure them.
"""

import sys
import threading
from typing import Any

from wrapt import register_post_import_hook

from tfdist.compat.patching import holding
from tfdist.observing import run_script


class DefaultStrategy:
    """The strategy of a process, made by name at TensorFlow's first operation."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._strategy: Any = None
        # In a server, making it does not return.
        self._is_needed = self._is_current = self._is_busy = False

    def install(self) -> None:
        """Watch TensorFlow and Keras, once the program imports them."""
        register_post_import_hook(self._watch_tensorflow, "tensorflow")
        register_post_import_hook(self._watch_keras, "keras")

    def check_needed(self) -> None:
        """Raise if the program has ended without a need for the strategy."""
        if not self._is_needed:
            raise RuntimeError(
                f"A program under --strategy {self._name} must use TensorFlow. "
                "Received: one that has ended without an operation of TensorFlow, on "
                "each process by itself. Leave out --strategy."
            )

    def _watch_tensorflow(self, _: Any) -> None:
        from tfdist.compat import default_strategy as compat

        compat.refuse_others(self._refuse)
        compat.call_before_start(self._make)

    def _watch_keras(self, keras: Any) -> None:
        backend = keras.backend.backend()
        if backend != "tensorflow":
            raise RuntimeError(
                f"--strategy {self._name} needs Keras on TensorFlow. Received: the "
                f"backend {backend!r}. Set KERAS_BACKEND=tensorflow, also where the "
                "script sets it."
            )
        from tfdist.compat.keras.install import install_for_default_strategy

        install_for_default_strategy()

    def _make(self) -> None:
        """Make the strategy, and let it be the current one of the main thread."""
        if self._is_current or self._is_busy:
            return
        self._is_needed = True
        with holding(self, "_is_busy", True):
            import tensorflow as tf

            from tfdist.strategies import create

            if self._strategy is None:
                self._strategy = create(self._name)
            # TensorFlow keeps it by thread. Another may have run the first operation.
            if threading.current_thread() is threading.main_thread():
                tf.distribute.experimental_set_strategy(self._strategy)
                self._is_current = True

    def _refuse(self, kind: type) -> None:
        """Raise for a strategy that the program makes."""
        if not self._is_busy:
            raise RuntimeError(
                "A program of several processes has one strategy. Received: "
                f"{kind.__name__} in the script, beside --strategy {self._name}. Drop "
                "one of them: leave out --strategy to keep the script's, or in the "
                "script use tf.distribute.get_strategy()."
            )


def main(name: str, *command: str) -> None:
    """Run a script, or `-m` and a module, under a strategy."""
    strategy = DefaultStrategy(name)
    strategy.install()
    module = command[0] == "-m"
    try:
        run_script(command[1:] if module else command, module=module)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    strategy.check_needed()


if __name__ == "__main__":
    main(*sys.argv[1:])
