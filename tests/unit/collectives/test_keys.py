import hashlib

import pytest
import tensorflow as tf

from tfdist.collectives.ops import InstanceKeys, with_elements, with_elements_of


def test_a_number_depends_on_the_description_alone():
    one, other = InstanceKeys(), InstanceKeys()
    other.base("something else before")

    assert one.base("all_reduce 'a'") == other.base("all_reduce 'a'")
    assert one.base("all_reduce 'a'") != one.base("all_reduce 'b'")


def test_a_number_fits_into_an_int32():
    numbers = [InstanceKeys().base(f"op {i}") for i in range(200)]

    assert min(numbers) >= 0
    assert max(numbers) < 2**31
    assert len(set(numbers)) == 200


def test_two_ops_of_one_number_are_refused(monkeypatch):
    class Colliding:
        def __init__(self, data, digest_size):
            del data, digest_size

        def digest(self):
            return b"\0\0\0\7"

    monkeypatch.setattr(hashlib, "blake2b", Colliding)
    owners = InstanceKeys()

    assert owners.base("one") == owners.base("one") == 7
    with pytest.raises(
        RuntimeError,
        match=r"Two collectives have the same key\. Received: 'one' and 'two'\. Give "
        "one of them another name",
    ):
        owners.base("two")


@pytest.mark.parametrize("elements", [0, 1, 2, 1000, 2**31, 2**40, 2**62])
@pytest.mark.parametrize("base", [0, 12345, 2**31 - 1])
def test_a_key_with_elements_fits_into_an_int32(base, elements):
    assert 0 <= with_elements(base, elements) < 2**31


@pytest.mark.parametrize("base", [0, 12345, 2**31 - 1])
def test_a_known_and_an_unknown_number_of_elements_give_one_key(base):
    @tf.function(input_signature=[tf.TensorSpec(None)])
    def unknown(tensor):
        return with_elements_of(base, tensor)

    for shape in ([], [0], [1], [1000], [300, 700]):
        tensor = tf.zeros(shape)

        assert unknown(tensor).dtype == tf.int32
        assert int(unknown(tensor)) == with_elements(base, int(tf.size(tensor)))


@pytest.mark.parametrize("elements", [2**31, 2**40, 2**62])
def test_a_number_beyond_an_int32_gives_one_key_too(elements, monkeypatch):
    # So large a tensor would not fit into memory; only its size is asked for.
    monkeypatch.setattr(tf, "size", lambda tensor, dtype: tf.constant(elements, dtype))

    assert int(with_elements_of(12345, object())) == with_elements(12345, elements)


def test_neighbouring_sizes_have_distant_keys():
    found = [with_elements(5, n) for n in range(1000)]

    assert len(set(found)) == 1000
    assert min(abs(a - b) for a, b in zip(found, found[1:], strict=False)) > 1000
