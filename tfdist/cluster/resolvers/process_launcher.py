"""Whether one process of many was started inside a container that a service described.

What SageMaker, Vertex AI or a pod template tells is about a container. An `mpirun` or a
`torchrun` inside it starts several processes with one and the same description: all of
them would take themselves for the same rank. `mpirun` even hands the description of the
first container to the processes in all others.
"""

from collections.abc import Mapping

# What shows each launcher, and where it tells how many processes it has started.
_LAUNCHERS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPI_LOCALRANKID", "PMI_SIZE"),
    ("TORCHELASTIC_RUN_ID", "WORLD_SIZE"),
)


def has_process_launcher(env: Mapping[str, str]) -> bool:
    """Say whether a launcher of processes has started this one beside others.

    Args:
        env: The environment, by variable.

    Returns:
        True if so: then that launcher alone knows which of them this process is. False
        for a launcher of one process, which leaves it the only one of its container.

    Example:
        >>> has_process_launcher({"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "8"})
        True
    """
    return any(env.get(sign) and env.get(size) != "1" for sign, size in _LAUNCHERS)
