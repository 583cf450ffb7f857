"""The public names are frozen: adding one is a decision, losing one breaks users."""

import ast
import importlib
import re
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

import tfdist

ROOT = Path(__file__).parents[2]

NAMES = """
tfdist: __version__ callbacks cluster data devices horovod is_chief launch
    layers learning_rate local_rank local_size mixed_precision optimizers rank ray
    size strategies testing
tfdist.callbacks: BackupAndRestore BroadcastVariables LearningRateScale
    LearningRateSchedule LearningRateWarmup MetricAverage ModelCheckpoint
    PrintLearningRate RankZero Sentinel Throughput Verdict
tfdist.cluster: Cluster Task detect
tfdist.data: read_tfds shard tfrecord_dataset write_tfrecords
tfdist.devices: grow_memory limit_memory log_placement logical physical pin split
tfdist.horovod: Adasum Average Compression DistributedGradientTape
    DistributedOptimizer Max Min PartialDistributedGradientTape
    PartialDistributedOptimizer ProcessSet Product Sum SyncBatchNormalization
    add_process_set allgather allgather_object allreduce alltoall broadcast
    broadcast_global_variables broadcast_object broadcast_variables callbacks
    ccl_built cross_rank cross_size cuda_built ddl_built elastic global_process_set
    gloo_built gloo_enabled grouped_allgather grouped_allreduce
    grouped_reducescatter init is_homogeneous is_initialized join load_model
    local_rank local_rank_op local_size local_size_op mpi_built mpi_enabled
    mpi_threads_supported nccl_built process_set_included_op rank rank_op
    reducescatter remove_process_set rocm_built shutdown size size_op start_timeline
    stop_timeline
tfdist.layers: DynamicEmbedding
tfdist.learning_rate: exponential_multiplier scale scale_factor warmup_multiplier
tfdist.mixed_precision: LossScaleOptimizer loss_scale set_policy
tfdist.optimizers: Lars LazyAdam LazySGD
tfdist.ray: Config Report
tfdist.strategies: AllReduceStrategy CentralStorageStrategy HorovodStrategy
    MirroredStrategy MultiWorkerMirroredStrategy OneDeviceStrategy
    ParameterServerStrategy TPUStrategy cluster_resolver create
tfdist.testing: ClusterError ClusterResult RankError cluster
"""
PUBLIC = {
    module: {*names.split()}
    for module, names in re.findall(r"^(\S+): ((?:.|\n )+)", NAMES, re.MULTILINE)
}


def import_or_read(module_name):
    """Import a module; without Horovod or Ray, read the names of one that needs it."""
    needed = module_name.split(".")[1:2]
    if needed not in (["horovod"], ["ray"]) or find_spec(*needed):
        return importlib.import_module(module_name)
    path = ROOT.joinpath(*module_name.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    names = {"__all__": []}
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign):
            name = ast.unparse(node.targets[0])
            is_list = name == "__all__"
            names[name] = ast.literal_eval(node.value) if is_list else node
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: alias for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            names[node.name] = node
    return SimpleNamespace(**names)


@pytest.mark.parametrize("module_name", PUBLIC)
def test_public_names_are_these_and_resolve(module_name):
    module = import_or_read(module_name)
    # Its own row resolves it.
    names = set(module.__all__) - {"horovod", "ray"}

    assert set(module.__all__) == PUBLIC[module_name]
    assert all(hasattr(module, name) for name in names)


def test_type_checkers_see_what_the_table_says():
    tree = ast.parse((ROOT / "tfdist" / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.asname: line.module for line in block.body for alias in line.names}

    assert ast.unparse(block.test) == "TYPE_CHECKING"
    assert seen == {
        name: module.removesuffix(f".{name}")
        for name, module in tfdist._PUBLIC_NAMES.items()
    }
