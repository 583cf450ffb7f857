import pytest

from tfdist.cluster.resolvers.pmix import PMIxResolver

# Of a process under `prterun`, without what only Open MPI's `mpirun` adds.
ENV = {
    "PMIX_NAMESPACE": "prterun-node1-9699@1",
    "PMIX_RANK": "1",
    "PMIX_SERVER_URI41": "prterun-node1-9699@0.0;tcp4://127.0.0.1:50815",
    "PMIX_HOSTNAME": "node1",
    "PMIX_VERSION": "4.2.2",
}


def test_a_rank_without_a_size_is_refused():
    assert PMIxResolver().recognises(ENV)
    message = (
        "^PMIX_RANK tells the rank of this process, but nothing tells how many there "
        "are. Received: PMIX_RANK=1, without OMPI_COMM_WORLD_SIZE. Start the program "
        "with Open MPI's `mpirun` or with `tfdist run`; unset PMIX_RANK if it"
    )
    with pytest.raises(ValueError, match=message):
        PMIxResolver().resolve(ENV)


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"PMIX_RANK": "1"},
        {"PMIX_NAMESPACE": "prterun-node1-9699@1"},
        ENV | {"PMIX_RANK": ""},
        # `srun --mpi=pmix` starts programs that have nothing to do with each other too.
        ENV | {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"},
        # A program that called MPI alone hands this on to those that it starts.
        ENV | {"PMIX_RANK": "0", "OMPI_MCA_ess": "singleton"},
    ],
)
def test_what_tells_no_rank_or_belongs_to_others_is_not_recognised(env):
    assert not PMIxResolver().recognises(env)


@pytest.mark.parametrize("rank", ["one", "-1", "1.0", " 1", "²"])
def test_a_malformed_rank_is_refused(rank):
    message = (
        f"^PMIX_RANK must be a whole number, as `prterun` sets it. "
        f"Received: PMIX_RANK='{rank}'. Start the program with `prterun`"
    )
    with pytest.raises(ValueError, match=message):
        PMIxResolver().resolve(ENV | {"PMIX_RANK": rank})
