"""Resolvers: each reads the variables of one launcher or scheduler."""

from tfdist.cluster.resolvers.base import PlaceResolver, Resolver
from tfdist.cluster.resolvers.kubernetes import KubernetesResolver
from tfdist.cluster.resolvers.launchers import PMIxResolver
from tfdist.cluster.resolvers.sagemaker import SageMakerResolver
from tfdist.cluster.resolvers.slurm import SlurmResolver
from tfdist.cluster.resolvers.tf_config import TFConfigResolver, TfdistResolver
from tfdist.cluster.resolvers.vertex import VertexResolver

__all__ = [
    "KubernetesResolver",
    "PMIxResolver",
    "PlaceResolver",
    "Resolver",
    "SageMakerResolver",
    "SlurmResolver",
    "TFConfigResolver",
    "TfdistResolver",
    "VertexResolver",
]
