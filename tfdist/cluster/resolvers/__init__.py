"""One resolver for each way in which an environment tells a process who it is."""

from tfdist.cluster.resolvers.base import PlaceResolver, Resolver
from tfdist.cluster.resolvers.horovod import HorovodResolver
from tfdist.cluster.resolvers.mpich import MPICHResolver
from tfdist.cluster.resolvers.open_mpi import OpenMPIResolver
from tfdist.cluster.resolvers.tf_config import TFConfigResolver
from tfdist.cluster.resolvers.tfdist import TfdistResolver

__all__ = [
    "HorovodResolver",
    "MPICHResolver",
    "OpenMPIResolver",
    "PlaceResolver",
    "Resolver",
    "TFConfigResolver",
    "TfdistResolver",
]
