import pytest

import tfdist


def test_a_public_name_is_loaded_once():
    assert tfdist.cluster is tfdist.cluster
    assert vars(tfdist)["cluster"] is tfdist.cluster


def test_a_misspelt_name_gets_the_nearest_one():
    with pytest.raises(AttributeError, match="Did you mean 'cluster'"):
        _ = tfdist.clusters


def test_a_name_like_no_other_gets_the_list():
    message = "no attribute 'xyzzy'. The public names are: callbacks, cluster, data, "
    with pytest.raises(AttributeError, match=message):
        _ = tfdist.xyzzy


def test_a_name_that_does_not_exist_is_not_there_for_hasattr():
    assert not hasattr(tfdist, "Strategy")


def test_dir_lists_every_public_name():
    assert set(tfdist.__all__) <= set(dir(tfdist))
