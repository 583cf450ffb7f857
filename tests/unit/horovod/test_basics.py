import subprocess
import sys

import pytest

pytestmark = pytest.mark.requires("horovodrun")


def test_a_lone_process_is_rank_0_of_1(hvd):
    assert hvd.is_initialized()
    assert (hvd.rank(), hvd.local_rank(), hvd.cross_rank()) == (0, 0, 0)
    assert (hvd.size(), hvd.local_size(), hvd.cross_size()) == (1, 1, 1)
    assert hvd.is_homogeneous()


def test_what_it_starts_is_alone_too(hvd):
    """With MPI, Horovod makes its process the only rank of a server of its own."""
    code = "import tfdist; print(tfdist.rank(), tfdist.size())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("0 1\n", "")


def test_starting_leaves_the_choice_of_devices_open(hvd):
    import tensorflow as tf

    assert tf.config.get_visible_devices() == tf.config.list_physical_devices()


def test_everything_of_horovods_own_interface_to_keras_is_here(hvd):
    import horovod.tensorflow.keras as theirs

    modules = {"inspect", "warnings", "version", "tf", "keras", "K"}
    functions = {"is_version_greater_equal_than"}
    public = {name for name in vars(theirs) if not name.startswith("_")}

    assert public - modules - functions - set(hvd.__all__) == set()
