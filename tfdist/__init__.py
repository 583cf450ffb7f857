"""Distributed training for Keras 3 on TensorFlow.

Public names are loaded on first use, so `import tfdist` itself does not load
TensorFlow.

Example:
    >>> import tfdist
    >>> tfdist.rank(), tfdist.size(), tfdist.is_chief()
    (0, 1, True)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdist import callbacks as callbacks
    from tfdist import cluster as cluster
    from tfdist import data as data
    from tfdist import devices as devices
    from tfdist import horovod as horovod
    from tfdist import layers as layers
    from tfdist import learning_rate as learning_rate
    from tfdist import mixed_precision as mixed_precision
    from tfdist import optimizers as optimizers
    from tfdist import ray as ray
    from tfdist import strategies as strategies
    from tfdist import testing as testing
    from tfdist.cluster.facts import is_chief as is_chief
    from tfdist.cluster.facts import local_rank as local_rank
    from tfdist.cluster.facts import local_size as local_size
    from tfdist.cluster.facts import rank as rank
    from tfdist.cluster.facts import size as size
    from tfdist.launching.function.launch_function import launch as launch

__version__ = "0.1.0"

# Public name -> the module of that name, or the module that defines it.
_PUBLIC_NAMES = {
    "callbacks": "tfdist.callbacks",
    "cluster": "tfdist.cluster",
    "data": "tfdist.data",
    "devices": "tfdist.devices",
    "horovod": "tfdist.horovod",
    "is_chief": "tfdist.cluster.facts",
    "launch": "tfdist.launching.function.launch_function",
    "layers": "tfdist.layers",
    "learning_rate": "tfdist.learning_rate",
    "local_rank": "tfdist.cluster.facts",
    "local_size": "tfdist.cluster.facts",
    "mixed_precision": "tfdist.mixed_precision",
    "optimizers": "tfdist.optimizers",
    "rank": "tfdist.cluster.facts",
    "ray": "tfdist.ray",
    "size": "tfdist.cluster.facts",
    "strategies": "tfdist.strategies",
    "testing": "tfdist.testing",
}

__all__ = ["__version__", *_PUBLIC_NAMES]


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    if name not in _PUBLIC_NAMES:
        raise AttributeError(_unknown(name))
    module_name = _PUBLIC_NAMES[name]
    module = importlib.import_module(module_name)
    value = module if module_name == f"tfdist.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *_PUBLIC_NAMES})


def _unknown(name: str) -> str:
    """Describe an unknown name, and suggest the closest public one."""
    # Imported late, because only an error needs it.
    import difflib

    nearest = difflib.get_close_matches(name, _PUBLIC_NAMES, n=1)
    advice = f"Did you mean {nearest[0]!r}? " if nearest else ""
    return (
        f"module 'tfdist' has no attribute {name!r}. {advice}"
        f"The public names are: {', '.join(sorted(_PUBLIC_NAMES))}."
    )
