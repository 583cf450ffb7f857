"""What no benchmark can measure with."""

import pytest

from tfdist.benchmarks.limits import check_at_least, check_size


def test_the_least_is_enough():
    check_size(2)
    check_at_least(2, steps=2, repeats=3)


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"size \(-np\) must be at least 2.*size=1"):
        check_size(1)
    with pytest.raises(ValueError, match="repeats must be at least 2. .*repeats=1"):
        check_at_least(2, steps=2, repeats=1)
