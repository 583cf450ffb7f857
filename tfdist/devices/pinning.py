"""Each process its own GPU."""

import tensorflow as tf

from tfdist.cluster import facts
from tfdist.devices.listing import parts_of
from tfdist.devices.starting import before_start


def pin(local_rank: int | None = None, local_size: int | None = None) -> str | None:
    """Hide from TensorFlow the GPUs of the other processes on this host.

    Every process would otherwise take memory on all of them and compute on the first.
    A process that sees one GPU only, because its scheduler chose for it, keeps it. The
    memory of the GPU is taken as it is needed, and not all of it at the start, unless
    it has a limit.

    `AllReduceStrategy` and `HorovodStrategy` do this by themselves.

    Args:
        local_rank: The number of this process among those on its host. Default None:
            `tfdist.local_rank()`.
        local_size: How many there are. Default None: `tfdist.local_size()`.

    Returns:
        "GPU:0", as TensorFlow calls the one that is left; None without GPUs.

    Raises:
        RuntimeError: If TensorFlow has already started all GPUs.
        ValueError: If there are several GPUs, and fewer than processes.

    Example:
        >>> pin()  # doctest: +SKIP
        'GPU:0'
    """
    rank = facts.local_rank() if local_rank is None else local_rank
    size = facts.local_size() if local_size is None else local_size
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        return None
    with before_start("Each process must choose its GPU", f"local_rank={rank}"):
        if len(gpus) > 1:
            gpus = [gpus[_check_place(rank, size, len(gpus))]]
            tf.config.set_visible_devices(gpus, "GPU")
        if not tf.config.get_logical_device_configuration(gpus[0]):
            tf.config.experimental.set_memory_growth(gpus[0], True)
    return parts_of(gpus[0])[0]


def _check_place(rank: int, size: int, gpus: int) -> int:
    """Return the number of the GPU of a process."""
    if size > gpus:
        raise ValueError(
            "Each process on a host needs a GPU of its own. Received: "
            f"{size} processes and {gpus} GPUs. Start at most {gpus} processes on this "
            'host, or hide the GPUs with CUDA_VISIBLE_DEVICES="" to train on its cores.'
        )
    if not 0 <= rank < size:
        raise ValueError(
            "local_rank must be the number of a process on this host. Received: "
            f"local_rank={rank}, local_size={size}. Count from 0."
        )
    return rank
