import pytest
import tensorflow as tf

from tfdist.first_step.rows import FirstRows


@pytest.mark.parametrize(
    ("ranks", "rows", "kept"), [(2, 16, 5), (3, 7, 5), (4, 8, 4), (8, 8, 0), (2, 3, 0)]
)
def test_as_many_rows_are_kept_as_memory_allows(ranks, rows, kept):
    first = FirstRows(ranks)
    batch = tf.range(rows), tf.ones([2 * rows, 3]), tf.constant(7)

    first.keep(batch, tf.constant(rows, tf.int64), per_row=(1, 2, 0))
    found = first.take()

    assert first.take() is None
    if not kept:
        assert found is None
    else:
        assert found.number == kept
        numbers, twice, constant = found.data
        assert numbers.numpy().tolist() == [*range(kept)]
        assert (twice.shape[0], int(constant)) == (2 * kept, 7)
