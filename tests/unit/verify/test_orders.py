"""What each process of a verification is told."""

import pytest

from tfdist.verify import Orders


def test_what_is_written_is_read(tmp_path):
    orders = Orders(("a.py", "--b"), size=3, steps=4, module=True, float64=True, seed=7)
    orders.write(tmp_path / "orders")

    assert Orders.read(tmp_path / "orders") == orders


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            {"size": 1},
            r"size \(-np\) must be at least 2. Received: size=1. One process",
        ),
        ({"steps": 0}, r"steps must be at least 1. Received: steps=0. Leave it out"),
        ({"seed": -1}, r"seed must be from 0 to 2\*\*32 - 1. Received: seed=-1. Leave"),
    ],
)
def test_what_is_refused(arguments, error):
    with pytest.raises(ValueError, match=error):
        Orders(("a.py",), **arguments)
