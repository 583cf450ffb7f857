"""Child process of a verification, which gets its orders as JSON."""

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfdist.cluster import detect, facts
from tfdist.compat.keras.install import install_for_observers
from tfdist.compat.patching import holding
from tfdist.default_strategy import DefaultStrategy
from tfdist.observing import leave_if_threads_would_stay, run_observed
from tfdist.verify.lone import LoneWatch
from tfdist.verify.start import Orders
from tfdist.verify.watch import Watch


def main(orders: Orders, folder: Path, *, lone: bool, order: int | None) -> None:
    """Run the script under a watch, and write the recording."""
    install_for_observers()
    if orders.strategy is not None:
        DefaultStrategy(orders.strategy).install()
    keras.utils.set_random_seed(orders.seed)
    if orders.float64:
        keras.config.set_floatx("float64")
    # TensorFloat-32 rounds more than float32 explains.
    config = tf.config.experimental
    config.enable_tensor_float_32_execution(False)
    with ExitStack() as stack:
        stack.enter_context(
            holding(config, "enable_tensor_float_32_execution", _ignore)
        )
        watch = Watch(0 if lone else detect().rank, orders.steps)
        if lone:
            watch = alone = LoneWatch(orders.steps, size=orders.size, order=order)
            stack.enter_context(facts.simulating(alone.membership))
        watch.recording.is_float64_wanted = orders.float64
        run_observed(watch, orders.command, module=orders.module)
    watch.recording.write(folder)
    leave_if_threads_would_stay()


def _ignore(enabled: Any) -> None:
    """Leave TensorFloat-32 off, whatever the script asks for."""


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    own = {name: given.pop(name) for name in ("folder", "lone", "order")}
    given["command"] = tuple(given["command"])
    main(Orders(**given), Path(own.pop("folder")), **own)
