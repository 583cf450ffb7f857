"""Measurements of a script that trains alone, as one rank of many."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

_STATUS = Path("/proc/self/status")
_PEAK = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
_BYTES_OF_UNIT = 1024
_GPU = "GPU:0"


@dataclass(frozen=True)
class Message:
    """A collective of a step.

    Attributes:
        kind: Its name in `Collective`, such as "all_reduce".
        size_bytes: The bytes that this rank gives.
        begin: The part of a step, from 0 to 1, after which its tensors are computed.
        is_gradient: Whether the step goes on while it is under way.
    """

    kind: str
    size_bytes: float
    begin: float
    is_gradient: bool = True


@dataclass(frozen=True)
class Memory:
    """Bytes of a process.

    Attributes:
        program: TensorFlow, the script and its data, before the first step.
        weights: Weights of the model.
        optimizer: Variables of the optimizer.
        gradients: Dense gradients of a step.
        peak: The most that was resident.
        is_of_gpu: Whether they are in the memory of its GPU, and not of the host.
    """

    program: int
    weights: int
    optimizer: int
    gradients: int
    peak: int
    is_of_gpu: bool = False

    @property
    def activations(self) -> int:
        """What else a step needs at its peak."""
        kept = self.program + self.weights + self.optimizer + self.gradients
        return max(0, self.peak - kept)


@dataclass
class Profile:
    """Measurements of one process.

    Attributes:
        ranks: The number of ranks of which it took itself for one.
        rows: Its rows of a batch.
        step_seconds: The times of its steps.
        memory: Its bytes.
        messages: The collectives of an update.
        micro_steps: The steps of an update (`gradient_accumulation_steps`).
        steps_of_epoch: Steps of an epoch, None if unknown.
        weight_bytes: The bytes of each trainable weight.
        gradient_bytes: The bytes of each dense gradient.
        is_sharded: Whether the script shards its optimizer.
        divisible: The positions of the weights of which ranks can update some rows.
        runtime_bytes: What the start of TensorFlow needs, without any connection.
    """

    ranks: int = 1
    rows: int = 0
    step_seconds: list[float] = field(default_factory=list)
    memory: Memory = field(default_factory=lambda: Memory(0, 0, 0, 0, 0))
    messages: list[Message] = field(default_factory=list)
    micro_steps: int = 1
    steps_of_epoch: int | None = None
    weight_bytes: list[int] = field(default_factory=list)
    gradient_bytes: list[int] = field(default_factory=list)
    is_sharded: bool = False
    divisible: list[int] = field(default_factory=list)
    runtime_bytes: int = 0

    @property
    def median_seconds(self) -> float:
        """The median of its steps."""
        return median(self.step_seconds)

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> "Profile":
        """Return the profile whose fields a process has reported."""
        memory = Memory(**report["memory"])
        messages = [Message(**each) for each in report["messages"]]
        return cls(**{**report, "memory": memory, "messages": messages})


def has_gpu() -> bool:
    """Return whether this process computes on a GPU, whose memory then counts."""
    # Imported late, because the command starts without TensorFlow.
    from tfdist.devices import logical

    return bool(logical("GPU"))


def resident_bytes() -> int:
    """Return the bytes of this process that are in memory."""
    return _of_gpu("current") if has_gpu() else _status("VmRSS")


def peak_bytes() -> int:
    """Return the most bytes of this process that were in memory."""
    # Unlike `ru_maxrss`, without those of the process that started this one.
    return _of_gpu("peak") if has_gpu() else _status("VmHWM")


def reset_peak() -> None:
    """Let `peak_bytes` begin again with what is resident now."""
    if has_gpu():
        import tensorflow as tf

        tf.config.experimental.reset_memory_stats(_GPU)
    else:
        _PEAK.write_text(_RESET_PEAK)


def _of_gpu(name: str) -> int:
    """Return a number of bytes that TensorFlow has allocated on the GPU."""
    import tensorflow as tf

    from tfdist.compat.tensorflow import has_started

    # The question alone would start TensorFlow, before a strategy chooses the GPU.
    info = tf.config.experimental.get_memory_info(_GPU) if has_started() else {}
    return int(info.get(name, 0))


def _status(name: str) -> int:
    """Return a number of bytes from the status of this process."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * _BYTES_OF_UNIT
    raise OSError(
        f"The system does not say how much memory a process has. Received: no {name} "
        f"in {_STATUS}. Run `tfdist estimate` on Linux."
    )
