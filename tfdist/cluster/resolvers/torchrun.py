"""The place of a process that torchrun has started.

The variables are those of https://docs.pytorch.org/docs/stable/elastic/run.html.
"""

from collections.abc import Mapping

from tfdist.cluster.place import Place
from tfdist.cluster.resolvers.variables import PlaceVariables

_VARIABLES = PlaceVariables("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


class TorchrunResolver:
    """Reads what `torchrun` gives each process: its place, and the first one's address.

    RANK and WORLD_SIZE are set by many scripts for many purposes. They are torchrun's
    only beside TORCHELASTIC_RUN_ID. With its option `--virtual-local-rank` all have the
    local rank 0, and each its own GPU in CUDA_VISIBLE_DEVICES.

    Example:
        >>> env = {"RANK": "3", "WORLD_SIZE": "4"}
        >>> env |= {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
        >>> TorchrunResolver().recognises(env)
        False
        >>> env |= {"TORCHELASTIC_RUN_ID": "none"}
        >>> TorchrunResolver().recognises(env), TorchrunResolver().resolve(env).rank
        (True, 3)
    """

    name = "torchrun"

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Say whether the process is one of torchrun's."""
        return bool(env.get("TORCHELASTIC_RUN_ID"))

    def resolve(self, env: Mapping[str, str]) -> Place:
        """Read the place from torchrun's variables."""
        return _VARIABLES.read(env, "torchrun")
