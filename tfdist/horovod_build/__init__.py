"""Building Horovod for the installed TensorFlow, and telling what was built.

Standard library only. What imports TensorFlow or Horovod runs in processes of its own.
"""

from tfdist.horovod_build.build import install
from tfdist.horovod_build.errors import BuildError
from tfdist.horovod_build.recipe import HOROVOD_VERSION
from tfdist.horovod_build.report import Report, check

__all__ = ["BuildError", "HOROVOD_VERSION", "Report", "check", "install"]
