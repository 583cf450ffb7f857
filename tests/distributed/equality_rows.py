"""The equality matrix: what runs in the processes, row after row."""

import gc
import importlib
import os
import pickle
import traceback
from pathlib import Path

from packaging.version import Version

import tfdist

MIB_OF_LOGICAL_GPU = 4096


class Failure(str):
    """The traceback of a row that raised."""


class OutOfStep(Failure):
    """That of a row in which not all ranks raised, or not at the same call."""


class Absent(Exception):
    """The installed Keras is an older one, which lacks what a row is about."""


class Skipped(str):
    """What it lacks."""


def of_keras(package, name):
    """Return a class of Keras, e.g. ("optimizers", "Adam"), that an older one lacks.

    The newest Keras must have it: a row that is skipped there would be so for ever.
    """
    import keras

    from tfdist.compat.keras.versions import NEWEST

    classes = getattr(keras, package) if package else keras
    is_older = Version(keras.__version__).release[:2] < NEWEST
    if is_older and not hasattr(classes, name):
        raise Absent(f"Keras {keras.__version__} has no {package}.{name}")
    return getattr(classes, name)


def run_rows(rows, folder, place):
    """Run rows in this process; leave what each ends with in a file of this rank.

    Args:
        rows: The name of the module and that of the row, for each row.
        folder: Where the file is; the working directory of the rows too, which all
            ranks share.
        place: The `Place` of this process.
    """
    _prepare_devices(place.devices)
    modules = {module: importlib.import_module(module) for module, _ in rows}
    is_plain = not place.strategy
    strategy = _strategy_of(place)
    os.chdir(folder)
    with open(rows_file(folder, tfdist.rank()), "ab") as file:
        for module, name in rows:
            outcome = _run_row(modules[module].ROWS[name], strategy)
            pickle.dump(((module, name), outcome), file)
            file.flush()
            if not is_plain:
                _meet(strategy, (module, name), outcome, file)


def _prepare_devices(count):
    """Make this process have so many devices, of the kind that it trains on."""
    import tensorflow as tf

    # What rounds more than float32 would hide what the rows look for.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    gpus = tf.config.list_physical_devices("GPU")
    first, *_ = gpus or tf.config.list_physical_devices("CPU")
    if count > 1 and len(gpus) < count:
        limit = MIB_OF_LOGICAL_GPU if gpus else None
        parts = [tf.config.LogicalDeviceConfiguration(limit) for _ in range(count)]
        tf.config.set_logical_device_configuration(first, parts)
    else:
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)


def _strategy_of(place):
    """Return the strategy of a `Place`; that of TensorFlow for plain Keras."""
    import tensorflow as tf

    from tfdist.collectives.tensorflow import TensorFlowCollective
    from tfdist.compat import sparse_updates

    if not place.strategy:
        # What is right does not depend on it, and it takes a fifth of the time.
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        return tf.distribute.get_strategy()
    # No row is wrong, and the check of the first step must not say so. Each row has a
    # column with two replicas.
    is_checked = place.size * place.devices == 2
    how = {"check_first_step": "raise" if is_checked else "off"}
    if place.is_as_on_gpus:
        sparse_updates.has_copies_on_gpus = lambda optimizer: True
        collective = TensorFlowCollective(
            tfdist.cluster.detect(), timeout_seconds=300, communication="nccl"
        )
        return tfdist.strategies.AllReduceStrategy(collective, **how)
    if place.strategy == "AllReduceStrategy":
        return tfdist.strategies.AllReduceStrategy(
            timeout_seconds=300, virtual_ranks=place.virtual_ranks, **how
        )
    return getattr(tfdist.strategies, place.strategy)(**how)


def rows_file(folder, rank):
    """Return the file in which a rank leaves what its rows end with."""
    return Path(folder) / f"rank.{rank}.rows"


def _meet(strategy, row, outcome, file):
    """End a row together; ranks that are elsewhere meet another call, and raise."""
    try:
        # A rank whose row ended in such an error must not answer those that wait here.
        with strategy.collective.call("the end of a row"):
            strategy.collective.exchange("the row", " ".join(row))
    except Exception:
        own = outcome if isinstance(outcome, Failure) else "This rank went through."
        text = f"{own}\nThe ranks are out of step:\n{traceback.format_exc()}"
        pickle.dump((row, OutOfStep(text)), file)
        raise


def _run_row(row, strategy):
    """Run a row in a process as fresh as it can be made."""
    import keras

    keras.backend.clear_session()
    # Rows collect garbage, which must not look at all that stays again and again.
    gc.freeze()
    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(1)
    try:
        return {**row(strategy), "floatx": keras.config.floatx()}
    except Absent as absent:
        return Skipped(absent)
    except Exception:
        return Failure(traceback.format_exc())
