"""Building Horovod for the installed TensorFlow, and checking an installed one.

Standard library only. TensorFlow and Horovod are imported in other processes.
"""

from tfdist.horovod_build.build import default_log, install
from tfdist.horovod_build.installed import BuildError
from tfdist.horovod_build.recipe import HOROVOD_VERSION
from tfdist.horovod_build.report import Report, check

__all__ = [
    "BuildError",
    "HOROVOD_VERSION",
    "Report",
    "check",
    "default_log",
    "install",
]
