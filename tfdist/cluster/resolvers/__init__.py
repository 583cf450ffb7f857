"""One resolver for each way in which an environment tells a process who it is."""

from tfdist.cluster.resolvers.base import PlaceResolver, Resolver
from tfdist.cluster.resolvers.horovod import HorovodResolver
from tfdist.cluster.resolvers.kubernetes import KubernetesResolver
from tfdist.cluster.resolvers.mpich import MPICHResolver
from tfdist.cluster.resolvers.open_mpi import OpenMPIResolver
from tfdist.cluster.resolvers.pmix import PMIxResolver
from tfdist.cluster.resolvers.sagemaker import SageMakerResolver
from tfdist.cluster.resolvers.slurm import SlurmResolver
from tfdist.cluster.resolvers.tf_config import TFConfigResolver
from tfdist.cluster.resolvers.tfdist import TfdistResolver
from tfdist.cluster.resolvers.torchrun import TorchrunResolver
from tfdist.cluster.resolvers.vertex import VertexResolver

__all__ = [
    "HorovodResolver",
    "KubernetesResolver",
    "MPICHResolver",
    "OpenMPIResolver",
    "PMIxResolver",
    "PlaceResolver",
    "Resolver",
    "SageMakerResolver",
    "SlurmResolver",
    "TFConfigResolver",
    "TfdistResolver",
    "TorchrunResolver",
    "VertexResolver",
]
