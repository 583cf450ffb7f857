"""What parameter servers cannot honour, refused before any step."""

from typing import Any

import keras

from tfdist.cluster import Cluster
from tfdist.compat.keras.compile_checks import synchronized_layers
from tfdist.compat.keras.learning_rates import optimizers_of


def check_cluster(cluster: Cluster) -> None:
    """Refuse a cluster in which somebody is missing.

    Args:
        cluster: The cluster.

    Raises:
        ValueError: If it has no chief, no worker or no ps, or if this process is none
            of them.
    """
    jobs = {"chief": cluster.chief, "worker": cluster.workers, "ps": cluster.ps}
    missing = [name for name, addresses in jobs.items() if not addresses]
    if missing:
        raise ValueError(
            "Parameter servers need a chief, workers and ps. Received: a cluster "
            f"without {' and '.join(missing)}: {cluster.jobs}. Start the program with "
            "`tfdist run --workers 2 --ps 1`, or name all of them in TF_CONFIG."
        )
    if cluster.task.type not in jobs:
        raise ValueError(
            "ParameterServerStrategy is for the chief, workers and ps. Received: the "
            f"task {cluster.task}. Let an evaluator load what the chief has saved."
        )


def check_graph(trainer: Any) -> None:
    """Refuse a model whose steps are no graph that a worker could run.

    Args:
        trainer: The model.

    Raises:
        ValueError: If it is to run eagerly, or compiled by XLA.
    """
    if trainer.run_eagerly:
        raise ValueError(
            "run_eagerly=True is not for parameter servers: a worker has no Python of "
            f"the step. Received: the model {trainer.name!r}, compiled with "
            "run_eagerly=True. Find the mistake on one process, without a strategy."
        )
    if trainer.jit_compile is True:
        raise ValueError(
            "jit_compile=True is not for parameter servers: XLA cannot hold what is "
            f"read from a server. Received: the model {trainer.name!r}. Compile it "
            "with jit_compile='auto'."
        )


def check_trainer(trainer: Any, strategy: Any) -> None:
    """Refuse a model that is compiled for what workers cannot do.

    Args:
        trainer: The model, compiled.
        strategy: The strategy.

    Raises:
        ValueError: If it is so.
    """
    check_graph(trainer)
    if layers := synchronized_layers(trainer):
        raise ValueError(
            "synchronized=True is not for parameter servers: a worker does not see "
            f"what others have of a batch. Received: the layer {layers[0]!r}. Make it "
            "with synchronized=False, or use AllReduceStrategy."
        )
    steps, most = trainer.steps_per_execution, strategy.max_staleness
    if most is not None and steps > most + 1:
        raise ValueError(
            "steps_per_execution must be at most max_staleness + 1, because the steps "
            "that a worker makes in one go miss each other's updates. Received: "
            f"steps_per_execution={steps} with max_staleness={most}. Use "
            f"steps_per_execution={most + 1}, or a larger max_staleness."
        )
    if strategy.consistency != "sync" and most != 0:
        for optimizer in optimizers_of(trainer):
            if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                raise ValueError(
                    "A loss scale may change between a gradient and its update. "
                    f"Received: {optimizer.name!r} with consistency="
                    f"{strategy.consistency!r}. Use consistency='sync', or "
                    "mixed_bfloat16, which needs no loss scale."
                )


def check_metrics(trainer: Any) -> None:
    """Refuse metrics whose states cannot be added up.

    Args:
        trainer: The model, compiled and built.

    Raises:
        ValueError: If the state of a metric is not a sum over the examples.
    """
    for metric in trainer.metrics:
        for variable in metric.variables:
            if variable.aggregation != "sum":
                raise ValueError(
                    "Parameter servers add up what the steps have counted. Received: "
                    f"the metric {metric.name!r}, whose variable {variable.name!r} has "
                    f"aggregation={variable.aggregation!r}. Use a metric that sums "
                    "over examples, or AllReduceStrategy."
                )
