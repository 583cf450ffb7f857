import numpy as np
import pytest
import tensorflow as tf

from tfdist.data.crc32c import masked_crc32c, unmask


def checksum(data):
    return int(masked_crc32c(np.frombuffer(data, np.uint8)[np.newaxis])[0])


# RFC 3720, B.4.
@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
    ids=["zeros", "ones", "up", "down"],
)
def test_the_published_values(data, crc):
    assert unmask(checksum(data)) == crc


def test_it_is_what_tensorflow_writes(tmp_path):
    with tf.io.TFRecordWriter(str(tmp_path / "file")) as writer:
        writer.write(b"some data")
    written = (tmp_path / "file").read_bytes()

    assert checksum(written[:8]) == int.from_bytes(written[8:12], "little")
    assert checksum(b"some data") == int.from_bytes(written[-4:], "little")


def test_each_row_has_its_own():
    rows = np.array([[1, 2], [3, 4]], np.uint8)

    assert masked_crc32c(rows).tolist() == [checksum(b"\1\2"), checksum(b"\3\4")]
    assert masked_crc32c(rows[:0]).tolist() == []
