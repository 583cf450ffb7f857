import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster.task_layouts import deal, places_on_nodes

# `tests/conftest.py` hides from the garbage collector what Hypothesis looks for there.
pytestmark = pytest.mark.filterwarnings("ignore:It looks like `register_random`")

COUNTS = st.lists(st.integers(0, 9), max_size=8).map(tuple)


# As `srun` of Slurm 22.05 has dealt them out, oversubscribed on three nodes.
@pytest.mark.parametrize(
    ("counts", "at_once", "nodes"),
    [
        ((2, 2), 2, (0, 0, 1, 1)),
        ((2, 2), 1, (0, 1, 0, 1)),
        ((4, 4, 3), 4, (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2)),
        ((4, 4, 3), 1, (0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1)),
        ((4, 4, 3), 2, (0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2)),
        ((4, 4, 3), 3, (0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 1)),
        ((3, 1, 2), 1, (0, 1, 2, 0, 2, 0)),
        ((0, 2), 2, (1, 1)),
        ((), 1, ()),
    ],
)
def test_tasks_go_round_the_nodes(counts, at_once, nodes):
    assert deal(counts, at_once=at_once) == nodes


@settings(deadline=None, derandomize=True, database=None)
@given(COUNTS, st.integers(1, 10))
def test_every_node_gets_its_tasks(counts, at_once):
    nodes = deal(counts, at_once=at_once)

    assert tuple(nodes.count(node) for node in range(len(counts))) == counts
    for node, count in enumerate(counts):
        places = zip(nodes, places_on_nodes(nodes), strict=True)
        assert [place for at, place in places if at == node] == [*range(count)]


def test_the_work_is_that_of_the_tasks_however_uneven_they_are():
    counts = (1,) * 32_768 + (32_768,)

    assert len(deal(counts, at_once=1)) == 65_536


def test_places_count_from_zero_on_each_node():
    assert places_on_nodes((1, 0, 1, 1)) == (0, 0, 1, 2)
