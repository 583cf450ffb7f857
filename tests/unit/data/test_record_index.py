import gzip
import re
import shutil

import pytest

from tfdist.data.record_index import index_file, index_files

RECORDS = [b"", b"abc", b"x" * 70_000, b"y"]
# 16 bytes beside the data of each.
OFFSETS = [0, 16, 35, 70_051]
SIZE = 70_068


def test_records_are_found(write):
    index = index_file(write(RECORDS))

    assert list(index.offsets) == OFFSETS
    assert (len(index), index.damage) == (4, None)


def test_an_empty_file_has_none(write):
    index = index_file(write([]))

    assert (len(index), index.damage) == (0, None)


def test_files_that_only_tensorflow_can_open(write):
    path = write(RECORDS)

    index = index_file(f"file://{path}")

    assert list(index.offsets) == OFFSETS
    assert index.damage is None


def test_files_are_in_order(write):
    paths = [write([b"z"] * count, str(count)) for count in range(40)]

    assert [*map(len, index_files(paths))] == list(range(40))


def test_a_file_that_is_not_there():
    with pytest.raises(FileNotFoundError, match="nowhere"):
        index_files(["/nowhere"])


@pytest.mark.parametrize(
    ("end", "record", "at_least"),
    [(SIZE - 1, 3, SIZE), (40, 2, 47), (70_000, 2, 70_051), (5, 0, 12), (15, 0, 16)],
)
def test_a_truncated_file_is_named_with_its_offset(
    write, change, end, record, at_least
):
    path = write(RECORDS)
    change(path, end, cut=True)

    index = index_file(path)

    assert list(index.offsets) == OFFSETS[:record]
    with pytest.raises(
        ValueError,
        match=re.escape(
            "A TFRecord file must hold whole records with their checksums. "
            f"Received: {path!r}, whose record {record} at byte offset "
            f"{OFFSETS[record]} is truncated: the file ends after {end} bytes, not "
            f"{at_least} or more. Write or copy the file again, or pass "
            'on_corrupt="skip" to go on without such records.'
        ),
    ):
        raise index.damage.error()


@pytest.mark.parametrize("record", range(4))
@pytest.mark.parametrize("byte", [0, 7, 8, 11])
def test_a_corrupt_length_is_named_with_its_offset(write, change, record, byte):
    path = write(RECORDS)
    change(path, OFFSETS[record] + byte)

    index = index_file(path)

    assert list(index.offsets) == OFFSETS[:record]
    assert (index.damage.record, index.damage.offset) == (record, OFFSETS[record])
    assert str(index.damage) == (
        f"{path!r}, whose record {record} at byte offset {OFFSETS[record]} is corrupt: "
        "its length does not match the checksum of it"
    )


def test_a_compressed_file_is_told_from_a_corrupt_one(write):
    path = write(RECORDS)
    with open(path, "rb") as file, gzip.open(f"{path}.gz", "wb") as packed:
        shutil.copyfileobj(file, packed)

    damage = index_file(f"{path}.gz").damage

    assert damage.what == "is none: the file is compressed with gzip, and must not be"
