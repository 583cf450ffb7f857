"""Where headers are forwarded to; the TensorFlow is a folder with empty files."""

import pytest

from tfdist.horovod_build.installed import BuildError, TensorFlow
from tfdist.horovod_build.recipe import forwarding_headers, write_headers

OLD = "tensorflow/compiler/xla"
NAMES = (
    "client/xla_builder.h",
    "service/custom_call_target_registry.h",
    "service/hlo.pb.h",
    "shape.h",
    "xla_data.pb.h",
)
FARMHASH = "external/farmhash_archive/src"
HIGHWAYHASH = "external/highwayhash"


@pytest.fixture
def tensorflow(tmp_path):
    """Return a function that makes a TensorFlow with some headers."""

    def make(*names):
        folder = tmp_path / "tensorflow"
        for name in names:
            path = folder / "include" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return TensorFlow("2.99.0", folder)

    return make


def old(*names):
    return [f"{OLD}/{name}" for name in names]


def test_with_all_headers_in_place_nothing_is_forwarded(tensorflow):
    assert forwarding_headers(tensorflow(*old(*NAMES))) == {}


def test_the_header_that_has_moved(tensorflow):
    here = tensorflow(*old(*NAMES[1:]), "xla/hlo/builder/xla_builder.h")

    text = '#pragma once\n#include "xla/hlo/builder/xla_builder.h"\n'
    assert forwarding_headers(here) == {f"{OLD}/client/xla_builder.h": text}


def test_the_whole_folder_may_have_moved(tensorflow):
    here = tensorflow(*[f"xla/{name}" for name in NAMES])

    forwarded = forwarding_headers(here)
    assert [*forwarded] == old(*NAMES)
    assert forwarded[f"{OLD}/shape.h"].endswith('"xla/shape.h"\n')


def test_a_header_that_is_nowhere(tensorflow):
    error = (
        "needs the header tensorflow/compiler/xla/client/xla_builder.h. Received: "
        "TensorFlow 2.99.0, .*xla/hlo/builder/xla_builder.h, xla/client/xla_builder.h"
    )
    with pytest.raises(BuildError, match=error):
        forwarding_headers(tensorflow(*old(*NAMES[1:])))


def test_the_include_path(tensorflow, tmp_path):
    here = tensorflow(
        *old(*NAMES[1:]),
        "xla/hlo/builder/xla_builder.h",
        f"{FARMHASH}/farmhash.h",
        f"{HIGHWAYHASH}/highwayhash/arch_specific.h",
    )

    folder = tmp_path / "forward"
    assert write_headers(here, folder) == [
        folder,
        here.include / FARMHASH,
        here.include / HIGHWAYHASH,
    ]
    assert (folder / OLD / "client/xla_builder.h").is_file()


def test_what_tensorflow_does_not_carry_is_left_to_the_system(tensorflow, tmp_path):
    assert write_headers(tensorflow(*old(*NAMES)), tmp_path) == [tmp_path]
