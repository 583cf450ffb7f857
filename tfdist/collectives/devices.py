"""Each process its own GPU."""

import tensorflow as tf


def use_own_gpu(local_rank: int, local_size: int) -> None:
    """Hide from TensorFlow the GPUs of the other processes on this host.

    Every process would otherwise take memory on all of them and compute on the first.
    A process that sees one GPU only, because its scheduler chose for it, keeps it. The
    memory of the GPU is taken as it is needed, and not all of it at the start.

    Args:
        local_rank: The number of this process among those on its host.
        local_size: How many there are.

    Raises:
        RuntimeError: If TensorFlow has already started all GPUs.
        ValueError: If there are several GPUs, and fewer than processes.
    """
    gpus = tf.config.get_visible_devices("GPU")
    if len(gpus) > 1:
        if local_size > len(gpus):
            raise ValueError(
                "Each process on a host needs a GPU of its own. Received: "
                f"{local_size} processes and {len(gpus)} GPUs. Start at most "
                f"{len(gpus)} processes on this host, or hide the GPUs with "
                'CUDA_VISIBLE_DEVICES="" to train on its cores.'
            )
    elif not gpus:
        return
    try:
        if len(gpus) > 1:
            gpus = [gpus[local_rank]]
            tf.config.set_visible_devices(gpus, "GPU")
        tf.config.experimental.set_memory_growth(gpus[0], True)
    except RuntimeError as error:
        raise RuntimeError(
            "Each process must choose its GPU before TensorFlow starts them. Received: "
            f"local_rank={local_rank} in a TensorFlow that has already started "
            f"({error}). Make the strategy first thing in the program, before any "
            "tensor, dataset, layer or model."
        ) from error
