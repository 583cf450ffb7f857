"""Building and checking Horovod for the installed TensorFlow."""

from tfdist.horovod_build.build import default_log, install
from tfdist.horovod_build.installed import BuildError, check
from tfdist.horovod_build.recipe import HOROVOD_VERSION

__all__ = ["BuildError", "HOROVOD_VERSION", "check", "default_log", "install"]
