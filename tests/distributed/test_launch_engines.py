"""`tfdist.launch` on a real Ray and a real Spark of this machine, and Ray Train."""

import json
import os
import sys

import pytest
from launcher import printed_by

pytestmark = [pytest.mark.new_processes, pytest.mark.slow]

TRAINING = """
import hashlib, json, os, signal, sys, tfdist

def sha256_of(model):
    weights = [weight.tobytes() for weight in model.get_weights()]
    return hashlib.sha256(b"".join(weights)).hexdigest()

def fit(scale, *callbacks):
    import keras
    import numpy as np

    strategy = tfdist.strategies.AllReduceStrategy(collective="tensorflow")
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        model.compile("adam", "mse")
    x = scale * np.arange(32.0).reshape(8, 4)
    for epochs in (2, 4):
        start = epochs - 2
        model.fit(
            x, x[:, :3], initial_epoch=start, epochs=epochs, callbacks=callbacks,
            verbose=2,
        )
    return model

def train(scale):
    return sha256_of(fit(scale))
"""

LAUNCH = """
import psutil

(folder,) = sys.argv[1:]

class Weather(Exception):
    pass

def fail():
    if tfdist.rank() == 1:
        raise Weather("bad")
    with open(os.path.join(folder, "pid"), "w") as file:
        file.write(str(os.getpid()))
    signal.pause()

def attempt(on):
    try:
        return tfdist.launch(fail, processes=2, on=on)
    except Weather as error:
        return [str(error), str(error.__cause__)]

def is_left():
    pid = os.path.join(folder, "pid")
    return os.path.exists(pid) and psutil.pid_exists(int(open(pid).read()))

def place():
    import tensorflow as tf

    names = ("TF_NUM_INTRAOP_THREADS", "TF_USE_LEGACY_KERAS")
    found = [os.environ.get(name) for name in names]
    return [tfdist.size(), tfdist.local_size(), *found, tf.keras.__version__[0]]

if __name__ == "__main__":
    found = {
        "here": tfdist.launch(train, 0.1, processes=2),
        "there": tfdist.launch(train, 0.1, processes=2, on=on),
        "place": tfdist.launch(place, processes=2, on=on),
        "error": attempt(on),
        "after": tfdist.launch(tfdist.size, processes=2, on=on),
        "is_left": is_left(),
    }
    print("FOUND", json.dumps(found), flush=True)
"""

RAY = """
on = "ray"
if __name__ == "__main__":
    import ray

    variables = {"TF_USE_LEGACY_KERAS": "1"}
    ray.init(num_cpus=3, include_dashboard=False, runtime_env={"env_vars": variables})
"""

SPARK = """
on = "spark"
if __name__ == "__main__":
    from pyspark.sql import SparkSession

    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    builder = SparkSession.builder.master("local[2]")
    builder.config("spark.ui.enabled", "false").getOrCreate()
"""

RAY_TRAIN = """
def train_in_ray(folder):
    import keras
    import tensorflow as tf

    class Die(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            mark = os.path.join(folder, "died")
            if epoch == 1 and tfdist.rank() == 1 and not os.path.exists(mark):
                open(mark, "w").close()
                os._exit(1)

    assert tf.keras.__version__[0] == "3"
    backup = tfdist.callbacks.BackupAndRestore(os.path.join(folder, "backup"))
    fit(0.1, backup, Die(), tfdist.ray.Report())

if __name__ == "__main__":
    import keras
    import ray.train
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    (folder,) = sys.argv[1:]
    result = DataParallelTrainer(
        lambda: train_in_ray(folder),
        backend_config=tfdist.ray.Config(),
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            storage_path=os.path.join(folder, "results"),
            failure_config=ray.train.FailureConfig(max_failures=1),
        ),
    ).fit()
    with result.checkpoint.as_directory() as checkpoint:
        model = keras.models.load_model(os.path.join(checkpoint, "model.keras"))
    found = {
        "here": tfdist.launch(train, 0.1, processes=2),
        "there": sha256_of(model),
        "metrics": sorted(result.metrics),
        "died": os.path.exists(os.path.join(folder, "died")),
    }
    print("FOUND", json.dumps(found), flush=True)
"""


def found_by(folder, *parts):
    """Run a program and return what it has found."""
    script = folder / "script.py"
    script.write_text("".join(parts))
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    printed = printed_by(sys.executable, script, folder, env=env, timeout=3000)
    lines = [line for line in printed.splitlines() if line.startswith("FOUND ")]
    return json.loads(lines[-1].removeprefix("FOUND "))


def check(found, threads):
    """Check what a launch has found on an engine."""
    assert found["there"] == found["here"]
    assert found["place"] == [2, 2, threads, None, "3"]
    message, cause = found["error"]
    assert message == "bad"
    assert '    raise Weather("bad")\n' in cause
    assert (found["after"], found["is_left"]) == (2, False)


@pytest.mark.requires("ray")
def test_ray_gives_the_same_weights_and_raises_errors(tmp_path):
    check(found_by(tmp_path, TRAINING, RAY, LAUNCH), threads="1")


@pytest.mark.requires("pyspark", "java")
def test_spark_gives_the_same_weights_and_raises_errors(tmp_path):
    check(found_by(tmp_path, TRAINING, SPARK, LAUNCH), threads="1")


@pytest.mark.requires("ray")
def test_ray_train_resumes_after_a_lost_worker_and_has_the_same_weights(tmp_path):
    found = found_by(tmp_path, TRAINING, RAY, RAY_TRAIN)

    assert found["there"] == found["here"]
    assert (found["metrics"], found["died"]) == (["loss"], True)
