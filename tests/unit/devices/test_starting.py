import pytest

from tfdist.devices.starting import before_start


def test_what_comes_too_late_is_explained():
    with (
        pytest.raises(
            RuntimeError,
            match=r"^A must be done before TensorFlow starts its devices\. Received: "
            r"b=1 in a TensorFlow that has already started them \(no\)\. Do it first "
            r"thing in the program, before any strategy, tensor, dataset, layer or ",
        ) as caught,
        before_start("A must be done", "b=1"),
    ):
        raise RuntimeError("no")

    assert str(caught.value.__cause__) == "no"


def test_other_errors_pass():
    with pytest.raises(ValueError, match="^other$"), before_start("A", "b"):
        raise ValueError("other")
