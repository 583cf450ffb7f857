"""GPUs, cores and processes of this host."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
_NVIDIA_FILES = "nvidia[0-9]*"
# The devices of NVIDIA's driver, of AMD's, and of Windows for a Linux within it.
_FILES = (_NVIDIA_FILES, "kfd", "dxg")
_NVIDIA = "0x10de"
# PCI's classes of display controllers and of 3D controllers, without the last byte.
_CLASSES = ("0x0300", "0x0302")
# TensorFlow lists devices without initializing them.
_PROGRAM = 'import tensorflow as tf; print(len(tf.config.list_physical_devices("GPU")))'
_COUNT_SECONDS = 60.0
# The fields of /proc/PID/stat after the name.
_STATE, _PARENT, _SESSION = 0, 1, 3
_DEAD = (b"Z", b"X")


def may_use_gpu(environ: Mapping[str, str], devices: Path = Path("/dev")) -> bool:
    """Return whether a GPU has a device file, and the environment does not hide it."""
    if environ.get(VISIBLE_VARIABLE, "all") in ("", "-1"):
        return False
    return any(any(devices.glob(pattern)) for pattern in _FILES)


def count_gpus(environ: Mapping[str, str], seconds: float = _COUNT_SECONDS) -> int:
    """Return the number of GPUs that TensorFlow finds; 0 if it does not answer."""
    # -P: this folder may have a file with the name of a package.
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _PROGRAM],
            env={**environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
        )
        return int(done.stdout.split()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return 0


def cores_of_gpus(
    cores: Sequence[int], root: Path = Path("/")
) -> tuple[tuple[int, ...], ...]:
    """Return the given cores that are near each NVIDIA GPU; empty if unknown."""
    devices = (root / "sys/bus/pci/devices").glob("*")
    gpus = sorted(folder for folder in devices if _is_gpu(folder))
    # CUDA numbers the GPUs in the order of PCI, but different models by speed, and
    # without those that a container or Slurm withholds from the job.
    files = (root / "dev").glob(_NVIDIA_FILES)
    usable = [file for file in files if os.access(file, os.R_OK | os.W_OK)]
    if len(usable) != len(gpus) or len({_read(gpu / "device") for gpu in gpus}) > 1:
        return ()
    return tuple(_cores_near(gpu, cores, root) for gpu in gpus)


def visible_gpus(
    gpus: Sequence[tuple[int, ...]], visible: str | None
) -> Sequence[tuple[int, ...]]:
    """Return the GPUs in CUDA_VISIBLE_DEVICES; empty unless it lists their numbers."""
    if visible is None:
        return gpus
    words = [word.strip() for word in visible.split(",")]
    places = {str(place): gpu for place, gpu in enumerate(gpus)}
    are_known = len({*words}) == len(words) and places.keys() >= {*words}
    return [places[word] for word in words] if are_known else []


def core_quota(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the number of cores whose time a container may use, None if unlimited."""
    # Version 2 of control groups, and version 1; a container sees its own at the root.
    old = [_read(root / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    for words in (_read(root / "cpu.max").split(), old):
        if len(words) == 2 and all(map(str.isdecimal, words)):
            quota, period = map(int, words)
            return max(1, quota // period)
    return None


def parent_of(process_id: int) -> int | None:
    """Return the parent of a process, None if it is gone or the system does not say."""
    fields = _fields(process_id)
    return int(fields[_PARENT]) if fields else None


def members_of(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    numbers = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]
    found = ((number, _fields(number)) for number in numbers)
    return [
        number
        for number, fields in found
        if fields and int(fields[_SESSION]) == session and fields[_STATE] not in _DEAD
    ]


def _is_gpu(folder: Path) -> bool:
    """Return whether a PCI device is a GPU of NVIDIA."""
    is_nvidia = _read(folder / "vendor") == _NVIDIA
    return is_nvidia and _read(folder / "class").startswith(_CLASSES)


def _cores_near(gpu: Path, cores: Sequence[int], root: Path) -> tuple[int, ...]:
    """Return the given cores that are on the NUMA node of a GPU."""
    # The kernel writes -1 for an unknown node, which has no folder.
    node = f"node{_read(gpu / 'numa_node')}"
    near = _numbers(_read(root / "sys/devices/system/node" / node / "cpulist"))
    return tuple(core for core in cores if core in near)


def _read(path: Path) -> str:
    """Return the text of a file of the kernel, empty without one."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _numbers(ranges: str) -> set[int]:
    """Return the numbers in a list of the kernel, such as "0-3,8"."""
    numbers: set[int] = set()
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def _fields(process_id: int) -> list[bytes]:
    """Return what Linux says of a process after its name, nothing if it is gone."""
    with (
        contextlib.suppress(OSError),
        open(f"/proc/{process_id}/stat", "rb") as file,
    ):
        # The name may itself contain spaces and parentheses.
        return file.read().rpartition(b")")[2].split()
    return []
