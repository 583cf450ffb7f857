"""One resolver for each way in which an environment describes a cluster."""

from tfdist.cluster.resolvers.base import Resolver
from tfdist.cluster.resolvers.tf_config import TFConfigResolver
from tfdist.cluster.resolvers.tfdist import TfdistResolver

__all__ = ["Resolver", "TFConfigResolver", "TfdistResolver"]
