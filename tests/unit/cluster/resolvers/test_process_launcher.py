import pytest

from tfdist.cluster.resolvers.process_launcher import has_process_launcher


@pytest.mark.parametrize(
    "env",
    [
        {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "8"},
        {"MPI_LOCALRANKID": "0", "PMI_RANK": "0", "PMI_SIZE": "4"},
        {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "2"},
        # Something is wrong, and the launcher's own resolver can say what.
        {"OMPI_COMM_WORLD_RANK": "0"},
        {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "two"},
    ],
)
def test_a_launcher_of_several_processes(env):
    assert has_process_launcher(env)


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "1"},
        {"OMPI_COMM_WORLD_RANK": "", "OMPI_COMM_WORLD_SIZE": "2"},
        # These are set by many things.
        {"RANK": "1", "WORLD_SIZE": "2"},
        {"PMI_RANK": "1", "PMI_SIZE": "2"},
    ],
)
def test_a_process_that_is_the_only_one_of_its_container(env):
    assert not has_process_launcher(env)
