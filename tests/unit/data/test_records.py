import re

import pytest
import tensorflow as tf

from tfdist.data.record_index import index_file
from tfdist.data.records import Piece, damages, explained, read, without_damages


def numbers(first, stop):
    return [b"%03d" % number for number in range(first, stop)]


def all_of(file):
    return Piece(file, 0, len(file))


def data_of(index, record):
    return index.offsets[record] + 12


def test_pieces_are_read_in_order(write):
    file = index_file(write(numbers(0, 10)))
    pieces = [Piece(file, 7, 3), Piece(file, 2, 2)]

    records = read(pieces, at_a_time=1, seed=None)

    assert list(records.as_numpy_iterator()) == [*numbers(7, 10), *numbers(2, 4)]
    assert int(records.cardinality()) == 5


def test_several_pieces_are_read_at_a_time_in_another_order_in_each_epoch(write):
    file = index_file(write(numbers(0, 60)))
    pieces = [Piece(file, first, 6) for first in range(0, 60, 6)]

    def epochs():
        records = read(pieces, at_a_time=4, seed=1)
        return [list(records.as_numpy_iterator()) for _ in range(2)]

    first, second = epochs()

    assert sorted(first) == sorted(second) == numbers(0, 60)
    assert first != second
    assert epochs() == [first, second]


@pytest.mark.parametrize("at_a_time", [1, 4])
def test_corrupt_data_is_an_error_that_names_file_and_offset(write, change, at_a_time):
    path = write(numbers(0, 10))
    file = index_file(path)
    change(path, data_of(file, 6))
    records = read(
        [Piece(file, 0, 4), Piece(file, 4, 6)], at_a_time=at_a_time, seed=None
    )

    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=re.escape(
            "A TFRecord file must hold whole records with their checksums. Received: "
            f"{path!r}, whose record 6 at byte offset {file.offsets[6]} is corrupt: "
            "its data does not match the checksum of it. Write or copy the file again"
        ),
    ):
        list(records)


def test_a_sound_piece_beside_corrupt_data_is_read(write, change):
    path = write(numbers(0, 10))
    file = index_file(path)
    change(path, data_of(file, 6))

    records = read([Piece(file, 2, 4), Piece(file, 7, 3)], at_a_time=1, seed=None)

    assert len(list(records)) == 7


def test_what_was_damaged_only_while_it_was_read_is_an_error(write):
    path = write(numbers(0, 10))

    error = explained(Piece(index_file(path), 1, 3))

    assert isinstance(error, OSError)
    assert str(error) == (
        "A TFRecord file must not change while it is read. Received: "
        f"{path!r}, of which the records from byte offset 19 could be read only in "
        "part. See whether its disk or network has failed."
    )


@pytest.mark.parametrize(
    "bad", [[], [0], [9], [3, 4], [0, 5, 9], list(range(10))], ids=str
)
def test_corrupt_records_are_cut_out(write, change, bad):
    path = write(numbers(0, 10))
    file = index_file(path)
    for record in bad:
        change(path, data_of(file, record))

    sound, found = without_damages(all_of(file))

    assert [damage.record for damage in found] == bad
    assert [damage.offset for damage in found] == [file.offsets[n] for n in bad]
    kept = [n for piece in sound for n in range(piece.first, piece.first + piece.count)]
    assert kept == [number for number in range(10) if number not in bad]


def test_damages_outside_of_a_piece_are_not_its_own(write, change):
    path = write(numbers(0, 10))
    file = index_file(path)
    for record in (2, 5, 8):
        change(path, data_of(file, record))

    assert [damage.record for damage in damages(Piece(file, 3, 5))] == [5]
