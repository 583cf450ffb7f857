"""One run of Weights & Biases and of MLflow in a job: that of the chief."""

import atexit
import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

import wrapt

from tfdist.compat.user_warnings import warn_user


def track_nothing_here() -> None:
    """Let this rank, which is not the chief, send nothing to a tracker.

    Its program runs as on the chief, as it may call `predict` or `save` on the way.
    """
    # The hooks run at once if the program has imported the module already.
    wrapt.register_post_import_hook(_disable_wandb, "wandb")
    wrapt.register_post_import_hook(_divert_mlflow, "mlflow")


def _disable_wandb(wandb: Any) -> None:
    """Make runs of this process disabled, unless `wandb.init` gets a mode."""
    _warn_of_run("wandb", wandb.run and not wandb.run.disabled)
    wandb.setup(wandb.Settings(mode="disabled"))


def _divert_mlflow(mlflow: Any) -> None:
    """Store the runs of this process in a folder that is removed when it ends."""
    if _warn_of_run("mlflow", mlflow.active_run()):
        return
    folder = tempfile.mkdtemp(prefix="tfdist-mlflow-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # Only in a folder that is not there yet MLflow makes its default experiment.
    mlflow.set_tracking_uri(Path(folder, "runs"))
    variables = mlflow.environment_variables
    # This folder has no run and no experiment of the chief's store.
    variables.MLFLOW_RUN_ID.unset()
    variables.MLFLOW_EXPERIMENT_ID.unset()
    # Newer versions ask before they store runs in a folder.
    if hasattr(variables, "MLFLOW_ALLOW_FILE_STORE"):
        variables.MLFLOW_ALLOW_FILE_STORE.set(True)
    for name in ("set_registry_uri", "set_tracking_uri"):
        setattr(mlflow, name, lambda uri: None)
    # The chief says the same, and has the files of models.
    logging.getLogger("mlflow").setLevel(logging.ERROR)


def _warn_of_run(name: str, run: Any) -> bool:
    """Warn of a run that began before the strategy, and return whether there is one."""
    if run:
        warn_user(
            f"A job has one run in {name} if it begins after the strategy is made. "
            "Received: a run of this rank that began before. Make the strategy first."
        )
    return bool(run)
