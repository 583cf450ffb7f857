"""The headers that Horovod includes and TensorFlow has moved since."""

from pathlib import Path

from tfdist.horovod_build.errors import COULD_NOT_START, BuildError
from tfdist.horovod_build.tensorflow import TensorFlow

# Where Horovod looks for the headers of XLA, and where TensorFlow keeps them now.
_OLD_FOLDER, _NEW_FOLDER = "tensorflow/compiler/xla", "xla"
_XLA_HEADERS = (
    "client/xla_builder.h",
    "service/custom_call_target_registry.h",
    "service/hlo.pb.h",
    "shape.h",
    "xla_data.pb.h",
)
_MOVED = {"client/xla_builder.h": "hlo/builder/xla_builder.h"}

# Headers that TensorFlow's own headers include, under `external`.
_EXTERNAL = {
    "external/farmhash_archive/src": "farmhash.h",
    "external/highwayhash": "highwayhash/arch_specific.h",
}


def forwarding_headers(tensorflow: TensorFlow) -> dict[str, str]:
    """Work out the headers that lead from the old places to the new ones.

    What decides is whether a file is there, not the version: TensorFlow moves headers
    between releases, and back.

    Args:
        tensorflow: The TensorFlow that Horovod is built for.

    Returns:
        The text of each header by its path; none where TensorFlow has all of them.

    Raises:
        BuildError: If a header is in no place that is known.
    """
    texts = {}
    for name in _XLA_HEADERS:
        if not (tensorflow.include / _OLD_FOLDER / name).is_file():
            target = _new_place(tensorflow, name)
            texts[f"{_OLD_FOLDER}/{name}"] = f'#pragma once\n#include "{target}"\n'
    return texts


def write_headers(tensorflow: TensorFlow, folder: Path) -> list[Path]:
    """Write the forwarding headers, and list where the compiler has to look.

    Args:
        tensorflow: The TensorFlow that Horovod is built for.
        folder: Where to write.

    Returns:
        The folders for the include path.

    Raises:
        BuildError: If a header is in no place that is known.
    """
    for name, text in forwarding_headers(tensorflow).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    external = [
        tensorflow.include / place
        for place, name in _EXTERNAL.items()
        if (tensorflow.include / place / name).is_file()
    ]
    return [folder, *external]


def _new_place(tensorflow: TensorFlow, name: str) -> str:
    """Find a header of XLA that is not where Horovod looks for it."""
    places = [_MOVED.get(name, name), name]
    for place in places:
        if (tensorflow.include / _NEW_FOLDER / place).is_file():
            return f"{_NEW_FOLDER}/{place}"
    looked = ", ".join(f"{_NEW_FOLDER}/{place}" for place in dict.fromkeys(places))
    raise BuildError(
        f"Horovod needs the header {_OLD_FOLDER}/{name}. Received: TensorFlow "
        f"{tensorflow.version}, which has neither that nor {looked} in "
        f"{tensorflow.include}. Install a TensorFlow from 2.18 to 2.21.",
        COULD_NOT_START,
    )
