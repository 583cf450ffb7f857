"""Child process of a verification, with the arguments ORDERS FOLDER [options]."""

import sys
from pathlib import Path

import keras
import tensorflow as tf

from tfdist.cluster import detect
from tfdist.compat import watching
from tfdist.compat.keras import install
from tfdist.verify.bits import BitsWatch
from tfdist.verify.lone import stand_for
from tfdist.verify.script import leave_if_threads_would_stay, run_script
from tfdist.verify.shuffled import shuffle_steps
from tfdist.verify.start import LONE_OPTION, SHUFFLED_OPTION, Orders
from tfdist.verify.watch import Watch


def main(
    orders: Orders, folder: Path, *, lone: bool, shuffled: int | None = None
) -> None:
    """Run the script under a watch, and write the recording."""
    watch = _prepare(orders, lone=lone)
    if shuffled is not None:
        shuffle_steps(shuffled)
    run_script(orders.command, module=orders.module)
    watch.recording.write(folder)
    leave_if_threads_would_stay()


def _prepare(orders: Orders, *, lone: bool) -> Watch:
    """Seed this process and install the watch."""
    # tfdist's own patches come first, so that the watch wraps them.
    install(is_alone=True)
    kind = BitsWatch if orders.bits else Watch
    watch = kind(0 if lone else detect().rank, orders.steps)
    watch.install()
    if lone:
        stand_for(orders.size)
    if orders.seed is not None:
        keras.utils.set_random_seed(orders.seed)
    watch.recording.is_float64_wanted = orders.float64
    if orders.float64:
        keras.config.set_floatx("float64")
    if not orders.bits:
        _keep_float32()
    return watch


def _keep_float32() -> None:
    """Turn TensorFloat-32 off for good: it rounds more than float32 explains."""
    config = tf.config.experimental
    config.enable_tensor_float_32_execution(False)
    watching.replace(config, "enable_tensor_float_32_execution", lambda enabled: None)


if __name__ == "__main__":
    given, name, *options = sys.argv[1:]
    order = int(options[-1]) if SHUFFLED_OPTION in options else None
    lone = LONE_OPTION in options
    main(Orders.read(given), Path(name), lone=lone, shuffled=order)
