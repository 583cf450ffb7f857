"""Horovod itself, or what to do to have it."""

from typing import Any

try:
    import horovod.tensorflow as _horovod
except ModuleNotFoundError as problem:
    raise ImportError(
        "tfdist.horovod needs Horovod. Received: an environment without it "
        f"({problem}). Run `tfdist horovod install`."
    ) from problem
except Exception as problem:
    # Its library names symbols of the TensorFlow that it was built for.
    raise ImportError(
        "tfdist.horovod needs a Horovod that was built for this TensorFlow. Received: "
        f"one that cannot be loaded ({type(problem).__name__}: {problem}). "
        "Run `tfdist horovod install` again; `tfdist horovod check` says more."
    ) from problem

# Horovod has no types.
native: Any = _horovod
